//! Facts of JSON that the library `config` does not report: positions of syntax errors, and keys given twice.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::problem::{MAX_SHOWN, Problem};
use crate::tree::push_key;

/// The key by which editors find the schema of a file.
const SCHEMA: &str = "$schema";

/// Looks for mistakes in a JSON text before it is read.
///
/// # Errors
///
/// If it is not JSON or not an object, or if an object has a key twice.
pub(crate) fn check(file: &str, text: &str) -> Result<(), Vec<Problem>> {
    let (mut key, mut twice) = (String::new(), Vec::new());
    let mut reader = serde_json::Deserializer::from_str(text);
    let seen = Keys { key: &mut key, twice: &mut twice, is_root: true }.deserialize(&mut reader);
    if let Err(error) = seen.and_then(|()| reader.end())
        && twice.len() <= MAX_SHOWN
    {
        let text = error.to_string();
        let what = match error.is_data() {
            // Not the error's own text, which repeats the value.
            true => "expected an object".to_owned(),
            false => format!("not JSON, as its extension says: {}", text.split(" at line ").next().unwrap_or_default()),
        };
        let location = format!("{file}:{}:{}", error.line().max(1), error.column().max(1));
        return Err(vec![Problem { location, key: String::new(), what }]);
    }
    if twice.is_empty() {
        return Ok(());
    }
    let problem = |key| Problem { location: file.to_owned(), key, what: "given twice; expected it once".to_owned() };
    Err(twice.into_iter().map(problem).collect())
}

/// Takes out the reference to the schema, which is for editors.
pub(crate) fn without_schema(root: &mut Value) {
    if let Value::Object(fields) = root
        && fields.get(SCHEMA).is_some_and(Value::is_string)
    {
        fields.remove(SCHEMA);
    }
}

/// Looks through a value for keys that are given twice.
struct Keys<'a> {
    /// Key of the value, as TOML writes it.
    key: &'a mut String,
    twice: &'a mut Vec<String>,
    is_root: bool,
}

impl Keys<'_> {
    /// Returns what looks through a value below this one.
    fn below(&mut self) -> Keys<'_> {
        Keys { key: self.key, twice: self.twice, is_root: false }
    }
}

impl<'de> DeserializeSeed<'de> for Keys<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.is_root { deserializer.deserialize_map(self) } else { deserializer.deserialize_any(self) }
    }
}

impl<'de> Visitor<'de> for Keys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<(), A::Error> {
        let mut names = BTreeSet::new();
        while let Some(name) = fields.next_key::<String>()? {
            let length = self.key.len();
            push_key(self.key, &name, false);
            if !names.insert(name) {
                self.twice.push(self.key.clone());
                // The rest is likely to be more of the same.
                if self.twice.len() > MAX_SHOWN {
                    return Err(A::Error::custom("too many keys are given twice"));
                }
            }
            fields.next_value_seed(self.below())?;
            self.key.truncate(length);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        for index in 0.. {
            let length = self.key.len();
            push_key(self.key, &usize::to_string(&index), true);
            let is_there = elements.next_element_seed(self.below())?.is_some();
            self.key.truncate(length);
            if !is_there {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}
