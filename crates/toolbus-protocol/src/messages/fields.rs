use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::json::{ParseError, checked_text, quoted};

/// A message whose fields are read in any case and at most once.
///
/// Serde's derive can do neither: it compares exactly, and peers send `ToolName` as well as `toolName`.
pub(crate) trait MessageFields: Default {
    /// The fields' names, as written.
    const NAMES: &'static [&'static str];

    /// Takes the value of field `name`, which is one of [`Self::NAMES`].
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error>;
}

/// Reads a body: field names in any case, unknown fields ignored, a field named twice refused.
///
/// # Errors
///
/// If the body is not UTF-8, not JSON, not an object, or too deep.
pub(crate) fn read_fields<M: MessageFields>(body: &[u8]) -> Result<M, ParseError> {
    let text = checked_text(body)?;
    match serde_json::from_str::<Liberal<M>>(text) {
        Ok(Liberal(message)) => Ok(message),
        Err(error) => Err(no_object(text).unwrap_or_else(|| error.into())),
    }
}

/// The text of a field; null is as good as an empty one.
pub(super) fn text<'de, A: MapAccess<'de>>(fields: &mut A) -> Result<String, A::Error> {
    Ok(fields.next_value::<Option<String>>()?.unwrap_or_default())
}

/// The text of a field; an empty one is as good as none.
pub(super) fn optional_text<'de, A: MapAccess<'de>>(fields: &mut A) -> Result<Option<String>, A::Error> {
    Ok(fields.next_value::<Option<String>>()?.filter(|text| !text.is_empty()))
}

/// A message whose field `name`, here as `text`, has to be there.
///
/// # Errors
///
/// If it is empty.
pub(super) fn required<M>(message: M, text: impl FnOnce(&M) -> &str, name: &'static str) -> Result<M, ParseError> {
    if text(&message).is_empty() { Err(ParseError::Missing(name)) } else { Ok(message) }
}

/// Whether the text is a value that is no object: the parser's own message would repeat that value.
fn no_object(text: &str) -> Option<ParseError> {
    let value: &RawValue = serde_json::from_str(text).ok()?;
    let kind = match value.get().bytes().next()? {
        b'{' => return None,
        b'[' => "an array",
        b'"' => "a string",
        b't' | b'f' => "a boolean",
        b'n' => "null",
        _ => "a number",
    };
    Some(ParseError::NotAnObject(kind))
}

struct Liberal<M>(M);

impl<'de, M: MessageFields> Deserialize<'de> for Liberal<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(LiberalVisitor(M::default())).map(Liberal)
    }
}

struct LiberalVisitor<M>(M);

impl<'de, M: MessageFields> Visitor<'de> for LiberalVisitor<M> {
    type Value = M;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<M, A::Error> {
        let mut message = self.0;
        let (mut seen, mut seen_unknown) = (0_u32, HashSet::new());
        while let Some(name) = fields.next_key::<String>()? {
            let known = M::NAMES.iter().position(|known| known.eq_ignore_ascii_case(&name));
            let bit = known.map_or(0, |index| 1 << index);
            if seen & bit != 0 || (known.is_none() && !seen_unknown.insert(name.clone())) {
                return Err(A::Error::custom(format_args!("duplicate member {}", quoted(&name))));
            }
            seen |= bit;
            match known.and_then(|index| M::NAMES.get(index)) {
                Some(name) => message.read(name, &mut fields)?,
                None => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(message)
    }
}
