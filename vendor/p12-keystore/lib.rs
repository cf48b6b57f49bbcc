//! Stands in for the published crate, with what `tcp-stream` calls of it: files of PKCS#12 are refused.

use std::fmt;

/// What no file is read into. It has no values.
#[derive(Debug)]
pub enum KeyStore {}

impl KeyStore {
    /// Reads no file.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn from_pkcs12(_data: &[u8], _password: &str) -> Result<Self, Unsupported> {
        Err(Unsupported)
    }

    /// The key with its certificates.
    pub fn private_key_chain(&self) -> Option<(&str, &PrivateKeyChain)> {
        match *self {}
    }
}

/// A key with its certificates. It has no values.
#[derive(Debug)]
pub enum PrivateKeyChain {}

impl PrivateKeyChain {
    /// The key in PKCS#8.
    pub fn key(&self) -> &[u8] {
        match *self {}
    }

    /// The certificates, that of the key first.
    pub fn chain(&self) -> &[Certificate] {
        match *self {}
    }
}

/// A certificate. It has no values.
#[derive(Debug)]
pub enum Certificate {}

impl Certificate {
    /// The certificate in DER.
    pub fn as_der(&self) -> &[u8] {
        match *self {}
    }
}

/// PKCS#12 is not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsupported;

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PKCS#12 is not supported: give certificate and key as PEM")
    }
}

impl std::error::Error for Unsupported {}
