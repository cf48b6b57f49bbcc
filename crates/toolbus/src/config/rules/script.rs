//! Checks of scripts.

use serde_json::Value;
use toolbus_scripts::config::{LocalConfig, RunnerKind, ScriptConfig};
use toolbus_scripts::requirement::AllowedPackages;
use toolbus_scripts::tool::{self, PYTHON};
use url::Url;

use super::{RuleChecker, path};

/// Problem of a runner for pods in a program that is built without it.
const NO_KUBERNETES: &str = "this program is built without the runner \"kubernetes\"; use the container image, or \
     build it with `--features kubernetes`";
/// Longest name of a language, in characters.
const MAX_LANGUAGE: usize = 32;
/// Names of further files beside the file of a script.
const OTHER_FILES: [&str; 2] = ["input", "key"];
/// Least memory that an interpreter starts with.
const LEAST_MEMORY: u64 = 32 * 1024 * 1024;

impl RuleChecker<'_> {
    pub(super) fn has_scripts(&self) -> bool {
        self.tree.get(&path("script")).is_some()
    }

    /// Names of the tools that run scripts.
    pub(super) fn script_tools(&self) -> Vec<String> {
        let languages = self.tree.get(&path("script.languages")).and_then(Value::as_object);
        let languages = languages.into_iter().flat_map(|languages| languages.keys().map(String::as_str));
        let python = self.has_scripts().then_some(PYTHON);
        python.into_iter().chain(languages).map(tool::name_of).collect()
    }

    /// Reports contradictions in the section of scripts, and the role `scripts` without that section.
    pub(super) fn script(&mut self) {
        if !self.has_scripts() {
            return self.role_without_section();
        }
        let Some(script) = self.section::<ScriptConfig>("script") else { return };
        if script.runner == RunnerKind::Local && script.local == LocalConfig::default() {
            self.report(
                &["script.runner"],
                "\"local\" keeps scripts from nothing: they can read and change all that the daemon can; expected \
                 \"sandbox\", or `script.local.i_understand = true`",
            );
        }
        if script.runner == RunnerKind::Kubernetes {
            self.pods(&script);
        }
        if let Some(most) = script.max_timeout.filter(|most| *most < script.timeout) {
            self.report(
                &["script.max_timeout", "script.timeout"],
                format!(
                    "max_timeout ({most}) is shorter than timeout ({}); expected it to be at least as long",
                    script.timeout
                ),
            );
        } else if script.longest_asked() < script.timeout {
            self.report(
                &["script.timeout"],
                format!(
                    "{} is longer than max_timeout, which is {} by default; give `max_timeout` too",
                    script.timeout,
                    script.longest_asked()
                ),
            );
        }
        if script.memory.bytes() < LEAST_MEMORY {
            let what = format!("{} is too little for Python to start; expected at least 32MiB", script.memory);
            self.report(&["script.memory"], what);
        }
        if script.pool.min > script.pool.max {
            let (min, max) = (script.pool.min, script.pool.max);
            let what = format!("min ({min}) is more than max ({max}); expected it to be at most as many");
            self.report(&["script.pool.min", "script.pool.max"], what);
        }
        self.languages(&script);
        if script.packages.max_size > script.packages.max_cache {
            let (one, all) = (script.packages.max_size, script.packages.max_cache);
            let what = format!("max_cache ({all}) has no room for the packages of one script, max_size ({one})");
            self.report(&["script.packages.max_cache", "script.packages.max_size"], what);
        }
        for (position, mistake) in AllowedPackages::parse(&script.packages.allow).err().into_iter().flatten() {
            self.report(&[&format!("script.packages.allow.{position}")], mistake.to_string());
        }
        // Where a password with a reserved character ended too early, its rest is in the path or behind it.
        let is_whole = |url: &Url| !url.path().contains('@') && url.query().is_none() && url.fragment().is_none();
        let is_index = |url: &Url| matches!(url.scheme(), "https" | "http") && url.has_host() && is_whole(url);
        let is_folder = |url: &Url| url.scheme() == "file" && !url.has_host() && url.path() != "/";
        if let Some(index) = &script.packages.index_url
            && !Url::parse(index.expose()).is_ok_and(|url| is_index(&url) || is_folder(&url))
        {
            // Not the address itself: there may be a login in it.
            let what = "no address of an index; expected \"https://host/simple\", or \"file:///folder\" for one of wheels; \
                 percent-encode `/`, `#`, `?`, `@` and `%` in user and password";
            self.report(&["script.packages.index_url"], what);
        }
    }

    /// Reports languages whose scripts could not be run.
    fn languages(&mut self, script: &ScriptConfig) {
        if !script.languages.is_empty() && script.runner != RunnerKind::Sandbox {
            let what = "other languages than Python run in the sandbox alone; expected `script.runner = \"sandbox\"`";
            self.report(&["script.languages", "script.runner"], what);
        }
        for (name, language) in &script.languages {
            let is_fit = |character: char| matches!(character, 'a'..='z' | '0'..='9' | '_');
            let wrong = if name == PYTHON {
                Some("Python needs no entry here: `script.python` names its interpreter; expected another language")
            } else if name.len() > MAX_LANGUAGE
                || !name.starts_with(|c: char| c.is_ascii_lowercase())
                || !name.chars().all(is_fit)
            {
                Some("no name of a language; expected lower-case letters, digits and `_`, such as \"javascript\"")
            } else {
                None
            };
            if let Some(wrong) = wrong {
                self.report(&[&format!("script.languages.{name}")], wrong);
            }
            let is_fit = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
            let is_taken = OTHER_FILES.contains(&&*language.file);
            if is_taken || language.file.starts_with(['.', '-']) || !language.file.chars().all(is_fit) {
                let what = "no name for the file of a script; expected letters, digits, `.`, `_` and `-`, such as \
                     \"script.mjs\", and neither \"input\" nor \"key\"";
                self.report(&[&format!("script.languages.{name}.file")], what);
            }
        }
    }

    /// Reports pod settings that no cluster accepts.
    fn pods(&mut self, script: &ScriptConfig) {
        if !cfg!(feature = "kubernetes") {
            self.report(&["script.runner"], NO_KUBERNETES);
        }
        let namespace = &script.kubernetes.namespace;
        let is_fit = |character: char| matches!(character, 'a'..='z' | '0'..='9' | '-');
        if !namespace.chars().all(is_fit) || namespace.starts_with('-') || namespace.ends_with('-') {
            self.report(
                &["script.kubernetes.namespace"],
                "no name of a namespace; expected lower-case letters, digits and `-` within, such as \"rockbot-scripts\"",
            );
        }
        if script.kubernetes.image.chars().any(|character| character.is_whitespace() || character.is_control()) {
            let what = "no name of an image; expected one such as \"python:3.12-slim\", or \"registry/name@sha256:…\"";
            self.report(&["script.kubernetes.image"], what);
        }
        let is_fit = |character: char| is_fit(character) || character == '.';
        let is_end = |character: char| !character.is_ascii_alphanumeric();
        let pool = script.kubernetes.warm_pool.as_deref();
        if pool.is_some_and(|pool| !pool.chars().all(is_fit) || pool.starts_with(is_end) || pool.ends_with(is_end)) {
            let what =
                "no name of a SandboxWarmPool; expected lower-case letters, digits, `-` and `.`, such as \"python\"";
            self.report(&["script.kubernetes.warm_pool"], what);
        }
        if pool.is_some() && self.tree.get(&path("script.kubernetes.image")).is_some() {
            let what = "has no effect with `warm_pool`, whose SandboxTemplate names the image; leave it out";
            self.report(&["script.kubernetes.image", "script.kubernetes.warm_pool"], what);
        }
        if !script.packages.allow.is_empty() {
            self.report(
                &["script.packages.allow"],
                "nothing is installed in pods; have the packages in `script.kubernetes.image`, and leave this out",
            );
        }
    }

    fn role_without_section(&mut self) {
        let roles = self.tree.get(&path("daemon.roles")).and_then(Value::as_array);
        if let Some(index) = roles.and_then(|roles| roles.iter().position(|role| role == "scripts")) {
            self.report(
                &[&format!("daemon.roles.{index}")],
                "there is no section [script], so that no script could be run; add it, or leave this role out",
            );
        }
    }
}
