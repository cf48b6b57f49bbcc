//! Every kind of mistake and its message; the order of the layers; that nothing shows a secret.

mod again;
mod described;
mod environment;
mod formats;
mod http;
mod layers;
mod mcp;
mod mistakes;
mod pins;
mod rules;
mod schema;
mod scripts;
mod secrets;
mod shipped;
mod suspicious;

use super::*;

/// Loads files of these texts, which problems call `a.toml` and `b.toml`.
fn load(texts: &[&str], environment: &[(&str, &str)], set: &[(&str, &str)]) -> Result<Loaded, String> {
    let files: Vec<_> = ["a.toml", "b.toml"].into_iter().zip(texts.iter().copied()).collect();
    named(&files, environment, set)
}

/// Loads files of these names and texts.
fn named(files: &[(&str, &str)], environment: &[(&str, &str)], set: &[(&str, &str)]) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let mut sources = Sources::default();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        sources.files.push(path);
    }
    sources.environment = environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    sources.overrides = set.iter().map(|(key, value)| Override::new(key, value)).collect();
    let here = format!("{}/", folder.path().display());
    Config::load(&sources).map_err(|problems| problems.to_string().replace(&here, ""))
}

fn problems(text: &str) -> String {
    load(&[text], &[], &[]).expect_err("a problem")
}

fn warnings(text: &str) -> String {
    load(&[text], &[], &[]).unwrap().warnings.join("\n")
}
