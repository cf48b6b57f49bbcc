//! When two texts name the same recipient.
//!
//! Strict on purpose: what a tool might read in another way than this gate is no recipient. Every form that is accepted
//! names one recipient and nothing else.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most digits of a telephone number (E.164).
const MAX_DIGITS: usize = 15;
/// Longest local part of an address (RFC 5321), in bytes.
const MAX_LOCAL: usize = 64;
/// Longest domain (RFC 1035), in bytes.
const MAX_DOMAIN: usize = 253;
/// Longest label of a domain, in bytes.
const MAX_LABEL: usize = 63;
/// Longest recipient of any kind, in bytes.
const MAX_LENGTH: usize = 1024;

/// Hosts of WhatsApp under which a user is known by the telephone number.
const USER_HOSTS: [&str; 2] = ["s.whatsapp.net", "c.us"];
/// Host of WhatsApp under which groups are known.
const GROUP_HOST: &str = "g.us";

/// Comparison of a recipient with a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Compare {
    // Also ids of users of WhatsApp; ids of groups as they are.
    /// Telephone numbers, by their digits.
    Digits,
    // The part before `@` as it is, the domain without case.
    /// Addresses of e-mail.
    Email,
    /// Character by character.
    Exact,
}

impl Compare {
    /// The one form in which this recipient is compared, if the text is one recipient.
    pub(super) fn normalised(self, text: &str) -> Option<Cow<'_, str>> {
        if text.is_empty() || text.len() > MAX_LENGTH {
            return None;
        }
        match self {
            Self::Digits => digits(text),
            Self::Email => email(text),
            Self::Exact => (text.trim() == text && !text.contains(char::is_control)).then_some(Cow::Borrowed(text)),
        }
    }

    /// Form of one recipient, for texts of errors.
    pub(super) const fn expected(self) -> &'static str {
        match self {
            Self::Digits => "one telephone number in digits, such as '+57 300 111 2233', or one WhatsApp id",
            Self::Email => "one plain address in ASCII, such as 'ana@example.com'",
            Self::Exact => "one text without control characters and without spaces around it",
        }
    }
}

fn digits(text: &str) -> Option<Cow<'_, str>> {
    let Some((user, host)) = text.split_once('@') else { return telephone(text).map(Cow::Owned) };
    if USER_HOSTS.contains(&host) {
        return is_number(user).then_some(Cow::Borrowed(user));
    }
    // Older groups are named after their founder and their time: two numbers.
    let is_group = host == GROUP_HOST && user.split('-').all(|part| !part.is_empty() && is_digits(part));
    is_group.then_some(Cow::Borrowed(text))
}

/// The digits of a telephone number as people write it.
fn telephone(text: &str) -> Option<String> {
    let (number, is_international) = text.strip_prefix('+').map_or((text, false), |number| (number, true));
    let is_written_so = number.starts_with(|c: char| c.is_ascii_digit() || c == '(')
        && number.ends_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || matches!(c, ' ' | '-' | '(' | ')' | '.'));
    let digits: String = number.chars().filter(char::is_ascii_digit).collect();
    // No country's code begins with a zero: some systems would dial what follows it.
    (is_written_so && is_number(&digits) && !(is_international && digits.starts_with('0'))).then_some(digits)
}

/// Whether these digits are a number by themselves: `00` is a way to write `+`, which would make one number two.
fn is_number(digits: &str) -> bool {
    (1..=MAX_DIGITS).contains(&digits.len()) && is_digits(digits) && !digits.starts_with("00")
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn email(text: &str) -> Option<Cow<'_, str>> {
    let (local, domain) = text.split_once('@')?;
    (is_local(local) && is_domain(domain)).then(|| Cow::Owned(format!("{local}@{}", domain.to_ascii_lowercase())))
}

/// Whether this is a `dot-atom` (RFC 5322): nothing quoted, no comment, no list. Without `*`, which looks like a
/// pattern in a list of recipients and would be none.
fn is_local(text: &str) -> bool {
    let is_atom = |atom: &str| {
        !atom.is_empty()
            && atom.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'+-/=?^_`{|}~".contains(&byte))
    };
    text.len() <= MAX_LOCAL && text.split('.').all(is_atom)
}

fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    text.len() <= MAX_DOMAIN && text.split('.').all(is_label)
}
