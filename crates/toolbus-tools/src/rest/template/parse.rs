use percent_encoding::percent_decode_str;
use url::Url;

use super::super::path::has_dot_segment;
use super::{Pair, Part, Parts, Template};

/// Why a text is no URL template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Not an absolute `http` or `https` URL.
    #[error("must start with `http://` or `https://`, followed by a host")]
    NotHttp,
    /// An argument would choose where the request goes.
    #[error("a placeholder may stand in the path or the query only, not in the {0}")]
    Misplaced(&'static str),
    /// Credentials in the URL.
    #[error("must not hold a user name or password; use `auth`")]
    UserInfo,
    /// A fragment.
    #[error("must not have a fragment (`#…`): it would never be sent")]
    Fragment,
    /// A brace without its partner, or one inside another.
    #[error("has an unbalanced brace; a placeholder is `{{name}}`, and a literal brace is `%7B` or `%7D`")]
    Unbalanced,
    /// Braces around something that is no name.
    #[error("has a placeholder whose name is empty or holds other characters than letters, digits, `_`, `-` and `.`")]
    Name,
    /// A character that has no place in a URL.
    #[error("must not hold spaces, control characters or backslashes; percent-encode them")]
    Character,
    /// `.` or `..` in the path.
    #[error("must not have `.` or `..` as a step of its path")]
    DotSegment,
    /// The URL parser's own refusal.
    #[error("is not a URL: {0}")]
    Url(#[from] url::ParseError),
}

impl Template {
    /// Parses a template.
    pub(crate) fn parse(template: &str) -> Result<Self, TemplateError> {
        if template.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\') {
            return Err(TemplateError::Character);
        }
        let (scheme, rest) = template.split_once("://").unwrap_or((template, ""));
        if scheme.contains(['{', '}']) {
            return Err(TemplateError::Misplaced("scheme"));
        }
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return Err(TemplateError::NotHttp);
        }
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        check_authority(authority)?;
        let (rest, fragment) = rest.split_once('#').map_or((rest, None), |(rest, fragment)| (rest, Some(fragment)));
        match fragment {
            Some(fragment) if fragment.contains(['{', '}']) => return Err(TemplateError::Misplaced("fragment")),
            Some(_) => return Err(TemplateError::Fragment),
            None => {}
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = path.strip_prefix('/').unwrap_or(path).split('/').map(segment).collect::<Result<_, _>>()?;
        let query = query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect::<Result<_, _>>()?;
        Ok(Self { origin: Url::parse(&format!("{scheme}://{authority}/"))?, path, query })
    }
}

fn check_authority(authority: &str) -> Result<(), TemplateError> {
    let (userinfo, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let (host, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let has_brace = |text: &str| text.contains(['{', '}']);
    match userinfo {
        Some(userinfo) if has_brace(userinfo) => Err(TemplateError::Misplaced("user name or password")),
        Some(_) => Err(TemplateError::UserInfo),
        None if has_brace(host) => Err(TemplateError::Misplaced("host")),
        None if has_brace(port) => Err(TemplateError::Misplaced("port")),
        None if host.is_empty() => Err(TemplateError::NotHttp),
        None => Ok(()),
    }
}

fn segment(text: &str) -> Result<Parts, TemplateError> {
    if has_dot_segment(text) {
        return Err(TemplateError::DotSegment);
    }
    parts(text)
}

fn pair(text: &str) -> Result<Pair, TemplateError> {
    let (name, _) = text.split_once('=').unwrap_or((text, ""));
    let name = (!name.contains('{')).then(|| percent_decode_str(name).decode_utf8_lossy().into_owned());
    Ok(Pair { name, parts: parts(text)? })
}

fn parts(mut text: &str) -> Result<Parts, TemplateError> {
    let mut parts = Vec::new();
    while let Some((literal, rest)) = text.split_once('{') {
        let (name, rest) = rest.split_once('}').ok_or(TemplateError::Unbalanced)?;
        if name.contains('{') {
            return Err(TemplateError::Unbalanced);
        }
        if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.')) {
            return Err(TemplateError::Name);
        }
        push_literal(&mut parts, literal)?;
        parts.push(Part::Placeholder(name.to_owned()));
        text = rest;
    }
    push_literal(&mut parts, text)?;
    Ok(Parts(parts))
}

fn push_literal(parts: &mut Vec<Part>, literal: &str) -> Result<(), TemplateError> {
    if literal.contains('}') {
        return Err(TemplateError::Unbalanced);
    }
    if !literal.is_empty() {
        parts.push(Part::Literal(literal.to_owned()));
    }
    Ok(())
}
