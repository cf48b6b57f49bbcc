//! Routes of the arguments of an operation: to path, query, headers or body, in the form of its specification.

use std::collections::{BTreeMap, HashMap};

use reqwest::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value};
use toolbus_core::failure::ToolFailure;
use toolbus_core::text::shown;
use toolbus_outbound::headers::parse_value;

use super::template::text;

/// Routes of the arguments of an operation, by their names. Those without a route are fields of the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ArgumentRoutes {
    pub(super) routes: BTreeMap<String, Route>,
    pub(super) body: RoutedBody,
    /// Whether requests are refused that have no idempotency key.
    pub(super) needs_key: bool,
}

/// Route of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// To the placeholder of the same name.
    Path,
    /// To the query, under this name.
    Query(String, QueryStyle),
    /// To this header.
    Header(HeaderName),
}

/// Style in which lists and objects are written in a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryStyle {
    /// The name again for each element; fields of an object under their own names.
    Repeated,
    /// Elements with this between them.
    Joined(char),
    /// Fields of an object as `name[field]`.
    Deep,
    /// As JSON.
    Json,
}

/// Source of the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum RoutedBody {
    /// There is none.
    #[default]
    None,
    /// Arguments without a route, as an object.
    Fields {
        /// Whether the body is sent without fields, too.
        is_required: bool,
    },
    /// The argument of this name.
    Whole(String),
}

/// Arguments by their position in the request.
#[derive(Debug, Default)]
pub(super) struct RoutedArguments {
    pub(super) path: Map<String, Value>,
    pub(super) query: Vec<(String, Value)>,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Option<Value>,
}

impl ArgumentRoutes {
    /// Puts each argument where its route leads; null counts as absent, but in the body.
    ///
    /// # Errors
    ///
    /// If a header cannot carry an argument, or a field of an object is another argument in the query.
    pub(super) fn split(&self, arguments: &Map<String, Value>) -> Result<RoutedArguments, ToolFailure> {
        let mut parts = RoutedArguments::default();
        let mut spread = HashMap::new();
        let mut fields = Map::new();
        for (argument, value) in arguments {
            match self.routes.get(argument) {
                Some(_) if value.is_null() => {}
                Some(Route::Path) => drop(parts.path.insert(argument.clone(), Value::String(joined(value, ',')))),
                Some(Route::Query(name, style)) => {
                    if let (QueryStyle::Repeated | QueryStyle::Deep, Value::Object(fields)) = (style, value) {
                        self.check_fields(argument, (name, *style), fields, &mut spread)?;
                    }
                    style.add(name, value, &mut parts.query);
                }
                Some(Route::Header(name)) => {
                    let refused =
                        |_| ToolFailure::invalid(format!("Argument `{argument}` cannot be sent in a header."));
                    let value = parse_value(name, &joined(value, ',')).map_err(refused)?;
                    parts.headers.push((name.clone(), value));
                }
                None => match &self.body {
                    RoutedBody::Whole(whole) if whole == argument => parts.body = Some(value.clone()),
                    _ => drop(fields.insert(argument.clone(), value.clone())),
                },
            }
        }
        if let RoutedBody::Fields { is_required } = self.body
            && (is_required || !fields.is_empty())
        {
            parts.body = Some(Value::Object(fields));
        }
        Ok(parts)
    }

    /// Refuses fields that would stand in the query as another argument, which the policy may set or look at: by no
    /// other way than under its own name may a caller give that. `spread` has the arguments whose fields stand there
    /// under their own names.
    fn check_fields<'a>(
        &self,
        argument: &'a str,
        (name, style): (&str, QueryStyle),
        fields: &Map<String, Value>,
        spread: &mut HashMap<String, &'a str>,
    ) -> Result<(), ToolFailure> {
        let others = self.routes.iter().filter_map(|(other, route)| match route {
            Route::Query(name, _) if other != argument => Some(steps(name)),
            _ => None,
        });
        let others: Vec<_> = others.collect();
        for (field, _) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let written = steps(&style.field(name, field));
            let is_other = |other: &Vec<String>| other.iter().zip(&written).all(|(other, own)| other == own);
            let is_spread = style == QueryStyle::Repeated
                && *spread.entry(written.first().cloned().unwrap_or_default()).or_insert(argument) != argument;
            if is_spread || others.iter().any(is_other) {
                let what = "which is another argument in the address. Leave it out.";
                let field = shown(field);
                return Err(ToolFailure::invalid(format!("Argument `{argument}` has a member `{field}`, {what}")));
            }
        }
        Ok(())
    }
}

/// A name in a query as the servers read it that find objects and lists in names, `a[b]`, `a.b` and `a[]`, and that do
/// not look at case.
fn steps(name: &str) -> Vec<String> {
    let steps = name.split(['[', ']', '.']).map(str::trim).filter(|step| !step.is_empty());
    steps.map(str::to_ascii_lowercase).collect()
}

impl QueryStyle {
    /// The name of an object's field, where fields have pairs of their own.
    fn field(self, name: &str, field: &str) -> String {
        if self == Self::Deep { format!("{name}[{field}]") } else { field.to_owned() }
    }

    fn add(self, name: &str, value: &Value, query: &mut Vec<(String, Value)>) {
        let pairs = match (self, value) {
            (Self::Repeated | Self::Deep, Value::Object(fields)) => {
                fields.iter().map(|(field, value)| (self.field(name, field), value.clone())).collect()
            }
            (Self::Joined(separator), Value::Array(_) | Value::Object(_)) => {
                vec![(name.to_owned(), Value::String(joined(value, separator)))]
            }
            (Self::Json, value) => vec![(name.to_owned(), Value::String(value.to_string()))],
            _ => vec![(name.to_owned(), value.clone())],
        };
        query.extend(pairs);
    }
}

/// A value as one string: elements, and fields after their names, with `separator` between them.
fn joined(value: &Value, separator: char) -> String {
    let parts: Vec<String> = match value {
        Value::Array(elements) => elements.iter().map(text).collect(),
        Value::Object(fields) => fields.iter().flat_map(|(name, value)| [name.clone(), text(value)]).collect(),
        other => return text(other),
    };
    parts.join(&separator.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn split(routes: &ArgumentRoutes, arguments: Value) -> RoutedArguments {
        let Value::Object(arguments) = arguments else { panic!("an object") };
        routes.split(&arguments).unwrap()
    }

    #[test]
    fn each_style_of_a_query_writes_lists_and_objects_in_its_way() {
        use QueryStyle::{Deep, Joined, Json, Repeated};
        let written = |style: QueryStyle, value: Value| {
            let mut query = Vec::new();
            style.add("q", &value, &mut query);
            query.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" & ")
        };
        let (list, object) = (json!([1, "b"]), json!({"x": 1, "y": [2]}));
        let table = [
            (Repeated, &list, r#"q=[1,"b"]"#),
            (Repeated, &object, "x=1 & y=[2]"),
            (Joined(','), &list, r#"q="1,b""#),
            (Joined('|'), &object, r#"q="x|1|y|[2]""#),
            (Deep, &object, "q[x]=1 & q[y]=[2]"),
            (Json, &object, r#"q="{\"x\":1,\"y\":[2]}""#),
            (Joined(' '), &json!(3), "q=3"),
        ];
        for (style, value, expected) in table {
            assert_eq!(written(style, value.clone()), expected, "{style:?}");
        }
    }

    #[test]
    fn arguments_go_where_their_routes_lead_and_the_others_make_the_body() {
        let header = HeaderName::from_static("x-trace");
        let routes = [
            ("id", Route::Path),
            ("page", Route::Query("page[number]".to_owned(), QueryStyle::Repeated)),
            ("trace", Route::Header(header.clone())),
        ];
        let routes = ArgumentRoutes {
            routes: routes.map(|(name, route)| (name.to_owned(), route)).into(),
            body: RoutedBody::Fields { is_required: false },
            ..Default::default()
        };
        let parts = split(&routes, json!({"id": [1, 2], "page": 3, "trace": "t", "name": "n", "none": null}));
        assert_eq!(Value::Object(parts.path), json!({"id": "1,2"}));
        assert_eq!(parts.query, [("page[number]".to_owned(), json!(3))]);
        assert_eq!(parts.headers, [(header, HeaderValue::from_static("t"))]);
        assert_eq!(parts.body, Some(json!({"name": "n", "none": null})));
        assert!(split(&routes, json!({"id": 1, "page": null})).body.is_none());
        let refused = routes.split(json!({"trace": "a\nb"}).as_object().unwrap()).unwrap_err();
        assert_eq!(refused.message, "Argument `trace` cannot be sent in a header.");
    }

    #[test]
    fn a_field_is_refused_that_a_server_may_read_as_another_argument() {
        use QueryStyle::{Deep, Repeated};
        let routes = [
            ("owner", "owner", Repeated),
            ("filter", "filter", Deep),
            ("filter_owner", "filter[owner]", Repeated),
            ("options", "options", Repeated),
            ("paging", "paging", Repeated),
        ];
        let routes = routes.map(|(argument, name, style)| (argument.to_owned(), Route::Query(name.to_owned(), style)));
        let routes = ArgumentRoutes { routes: routes.into(), ..Default::default() };
        let refused = [
            (json!({"options": {"owner": 1}}), "options", "owner"),
            (json!({"options": {"Owner": 1}}), "options", "Owner"),
            (json!({"options": {"owner[]": 1}}), "options", "owner[]"),
            (json!({"options": {"[owner]": 1}}), "options", "[owner]"),
            (json!({"options": {"owner.0": 1}}), "options", "owner.0"),
            (json!({"options": {" owner": 1}}), "options", " owner"),
            (json!({"options": {"filter[x]": 1}}), "options", "filter[x]"),
            (json!({"options": {"": 1}}), "options", ""),
            (json!({"filter": {"owner": 1}}), "filter", "owner"),
            (json!({"filter": {"owner][0": 1}}), "filter", "owner][0"),
            (json!({"options": {"size": 1}, "paging": {"Size": 2}}), "paging", "Size"),
            (json!({"options": {"size[a]": 1}, "paging": {"size[b]": 2}}), "paging", "size[b]"),
        ];
        for (arguments, argument, field) in refused {
            let failure = routes.split(arguments.as_object().unwrap()).unwrap_err();
            let text = format!(
                "Argument `{argument}` has a member `{field}`, which is another argument in the address. Leave it out."
            );
            assert_eq!(failure.message, text, "{arguments}");
        }
        let sent = json!({
            "owner": 1, "filter": {"owners": 2, "options": 3}, "filter_owner": 4,
            "options": {"options": 5, "a[x]": 6, "a[y]": 7, "owner": null}, "paging": {"page": 8}
        });
        let sent = split(&routes, sent).query;
        // `null` is not written.
        let sent = sent.iter().filter(|(_, value)| !value.is_null());
        let names: Vec<_> = sent.map(|(name, _)| name.as_str()).collect();
        let expected =
            ["filter[options]", "filter[owners]", "filter[owner]", "a[x]", "a[y]", "options", "owner", "page"];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_required_body_is_sent_without_fields_and_a_whole_one_unchanged() {
        let required = ArgumentRoutes { body: RoutedBody::Fields { is_required: true }, ..Default::default() };
        assert_eq!(split(&required, json!({})).body, Some(json!({})));
        let whole = ArgumentRoutes { body: RoutedBody::Whole("body".to_owned()), ..Default::default() };
        assert_eq!(split(&whole, json!({"body": [1]})).body, Some(json!([1])));
        assert!(split(&whole, json!({})).body.is_none());
    }
}
