//! The formats of configuration files, which their extensions name.

use std::path::Path;

/// Longest extension that is repeated, in characters.
const MAX_SHOWN: usize = 20;

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigFormat {
    /// `.toml`, or no extension.
    Toml,
    /// `.json`
    Json,
    /// `.yaml` or `.yml`
    Yaml,
}

impl ConfigFormat {
    /// The format that the extension of a file names, ASCII case ignored.
    ///
    /// # Errors
    ///
    /// If the extension is none of `toml`, `json`, `yaml` and `yml`.
    pub fn of(file: &Path) -> Result<Self, UnknownConfigFormat> {
        let extension = file.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            None | Some("toml") => Ok(Self::Toml),
            Some("json") => Ok(Self::Json),
            Some("yaml" | "yml") => Ok(Self::Yaml),
            Some(other) => Err(UnknownConfigFormat(other.chars().take(MAX_SHOWN).collect())),
        }
    }
}

/// An extension that names no format of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its extension `.{0}` is that of no configuration; expected .toml, .json, .yaml or .yml, or none for TOML")]
pub struct UnknownConfigFormat(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_decides_the_format() {
        let format = |name: &str| ConfigFormat::of(Path::new(name));
        for (name, expected) in [
            ("a.toml", ConfigFormat::Toml),
            ("a", ConfigFormat::Toml),
            (".a", ConfigFormat::Toml),
            ("/etc/a.d/a", ConfigFormat::Toml),
            ("a.json", ConfigFormat::Json),
            ("a.yaml", ConfigFormat::Yaml),
            ("a.b.YML", ConfigFormat::Yaml),
        ] {
            assert_eq!(format(name), Ok(expected), "{name}");
        }
        insta::assert_snapshot!(format("a.conf").unwrap_err(), @"its extension `.conf` is that of no configuration; expected .toml, .json, .yaml or .yml, or none for TOML");
        let long = format(&format!("a.{}", "x".repeat(1000))).unwrap_err().to_string();
        assert!(long.len() < 200, "{long}");
    }
}
