//! A private certificate authority, and a certificate for `localhost` by it.

use std::fs;
use std::io;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// File of the authority's certificate.
pub const AUTHORITY: &str = "ca.pem";
/// File of the certificate.
pub const CERTIFICATE: &str = "cert.pem";
/// File of the certificate's key.
pub const KEY: &str = "key.pem";

/// Writes a new authority, a certificate and its key into a folder.
///
/// # Errors
///
/// If a file cannot be written.
pub fn write_authority(folder: &Path) -> io::Result<()> {
    let made = || {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let cert = CertificateParams::new(vec!["localhost".to_owned()])?.signed_by(&key, &authority)?;
        Ok([(AUTHORITY, authority.pem()), (CERTIFICATE, cert.pem()), (KEY, key.serialize_pem())])
    };
    let files: Result<_, rcgen::Error> = made();
    for (name, text) in files.map_err(io::Error::other)? {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}
