//! Everything that can be known to be wrong before the first call.

use std::sync::Arc;

use reqwest::header::HeaderName;
use toolbus_core::Parameters;
use toolbus_core::tool::ToolDescriptor;
use toolbus_outbound::headers::{parse_name, unreserved};

use super::credentials::EndpointCredentials;
use super::endpoint::EndpointExecutor;
use super::template::UrlTemplate;
use super::{Body, Endpoint, EndpointError, RestClient};
use crate::nearest::nearest;

/// Checks a section, and makes of it what runs and what is known of it.
pub(super) fn endpoint(
    endpoint: &Endpoint,
    client: &RestClient,
) -> Result<(ToolDescriptor, EndpointExecutor), EndpointError> {
    if endpoint.name.trim().is_empty() {
        return Err(EndpointError::Name);
    }
    if endpoint.body == Body::Json && !endpoint.method.takes_body() {
        return Err(EndpointError::Body(endpoint.method.as_str()));
    }
    let template = UrlTemplate::parse(&endpoint.url)?;
    let parameters = Parameters::parse(endpoint.parameters.as_deref())?;
    check_placeholders(&template, &parameters)?;
    if endpoint.body == Body::None && endpoint.routes.is_none() {
        check_fixed(&template, &parameters)?;
    }
    let credentials = EndpointCredentials::new(endpoint, |credential| client.authorizer(credential))?;

    let descriptor = ToolDescriptor {
        description: endpoint.description.clone(),
        parameters: parameters.into_schema(),
        effect: endpoint.effect(),
        timeout: Some(endpoint.timeout.get()),
        ..ToolDescriptor::new(&*endpoint.name, "rest", "rest")
    };
    let (max_response, grows) = endpoint.response_limit();
    let executor = EndpointExecutor {
        name: Arc::clone(&descriptor.name),
        client: client.clone(),
        method: endpoint.method,
        template,
        credentials,
        body: endpoint.body,
        routes: endpoint.routes.clone(),
        is_guarded: endpoint.is_guarded,
        idempotency_header: endpoint.idempotency_header().map(idempotency_header).transpose()?,
        timeout: endpoint.timeout.get(),
        max_response,
        grows,
    };
    Ok((descriptor, executor))
}

/// The name of a header that carries an idempotency key.
fn idempotency_header(name: &str) -> Result<HeaderName, EndpointError> {
    parse_name(name).and_then(unreserved).map_err(EndpointError::IdempotencyHeader)
}

/// Properties that would go to the query under a name that it has.
fn check_fixed(template: &UrlTemplate, parameters: &Parameters) -> Result<(), EndpointError> {
    let used: Vec<&str> = template.placeholders().collect();
    let mut extra = parameters.names().filter(|name| !used.contains(&name.as_str()));
    extra.find(|name| template.fixes(name)).map_or(Ok(()), |name| Err(EndpointError::Fixed(name.clone())))
}

fn check_placeholders(template: &UrlTemplate, parameters: &Parameters) -> Result<(), EndpointError> {
    match template.placeholders().find(|name| parameters.property(name).is_none()) {
        None => Ok(()),
        Some(placeholder) => {
            let near = nearest(placeholder, parameters.names().cloned(), 1).pop();
            let hint = near.map_or_else(String::new, |name| format!("; did you mean `{{{name}}}`?"));
            Err(EndpointError::Undeclared { placeholder: placeholder.to_owned(), hint })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use toolbus_config::HumanDuration;
    use toolbus_core::ParametersError;
    use toolbus_core::tool::Effect;

    use super::{Endpoint, EndpointError, RestClient};
    use crate::Secret;
    use crate::rest::{Auth, Body, CredentialError, HeaderError, Method, UrlTemplateError, tool};

    const CITY: &str = r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}"#;

    fn weather() -> Endpoint {
        let mut settings = Endpoint::new("get_weather", "http://127.0.0.1:9/v1?city={city}");
        settings.parameters = Some(CITY.to_owned());
        settings
    }

    fn refused(change: impl FnOnce(&mut Endpoint)) -> EndpointError {
        let mut settings = weather();
        change(&mut settings);
        tool(&settings, &RestClient::new(Default::default()).unwrap()).expect_err("a refusal")
    }

    #[test]
    fn a_tool_is_described_as_configured() {
        let mut settings = weather();
        settings.description = "Current weather of a city".to_owned();
        settings.timeout = HumanDuration::from_secs(10);
        settings.effect = Some(Effect::ReadOnly);
        let tool = tool(&settings, &RestClient::new(Default::default()).unwrap()).unwrap();
        let descriptor = &tool.descriptor;
        assert_eq!((&*descriptor.name, &*descriptor.source, descriptor.provider), ("get_weather", "rest", "rest"));
        assert_eq!(descriptor.description, "Current weather of a city");
        assert_eq!(descriptor.parameters.as_ref().unwrap()["required"][0], "city");
        assert_eq!((descriptor.effect, descriptor.timeout), (Effect::ReadOnly, Some(Duration::from_secs(10))));
    }

    #[test]
    fn an_endpoint_without_an_effect_has_that_of_its_method() {
        let client = RestClient::new(Default::default()).unwrap();
        let effect = |method: Method, effect: Effect| {
            tool(&Endpoint { method, effect: Some(effect), ..weather() }, &client).unwrap().descriptor.effect
        };
        let of_methods = Method::ALL.map(|method| effect(method, Effect::Undeclared));
        let [get, post, put, patch, delete, head] = of_methods;
        assert_eq!((get, head), (Effect::ReadOnly, Effect::ReadOnly));
        assert_eq!((put, delete), (Effect::Idempotent, Effect::Idempotent));
        assert_eq!((post, patch), (Effect::Undeclared, Effect::Undeclared));
        assert_eq!(effect(Method::Get, Effect::Effectful), Effect::Effectful);
    }

    #[test]
    fn an_undeclared_placeholder_is_refused_with_the_nearest_name() {
        let error = refused(|settings| settings.url = "http://h/?q={citty}".to_owned());
        assert_eq!(
            error.to_string(),
            "the URL has a placeholder `{citty}`, but `parameters` has no property of that name; \
             did you mean `{city}`?"
        );
        let error = refused(|settings| settings.parameters = None);
        assert!(matches!(error, EndpointError::Undeclared { .. }), "{error}");
    }

    #[test]
    fn a_schema_that_cannot_be_used_is_refused() {
        for text in ["", "no", "[]", "{", r#"{"type":"object","type":"object"}"#] {
            let error = refused(|settings| settings.parameters = Some(text.to_owned()));
            assert!(matches!(error, EndpointError::Parameters(ParametersError::Json(_))), "{text}: {error}");
        }
        for text in ["{}", r#"{"type":"string"}"#, r#"{"type":["object","null"]}"#] {
            let error = refused(|settings| settings.parameters = Some(text.to_owned()));
            assert_eq!(error, EndpointError::Parameters(ParametersError::Type), "{text}");
        }
        for text in [
            r#"{"type":"object","properties":{"city":{"type":"strin"}}}"#,
            r#"{"type":"object","properties":{"city":{"$ref":"http://elsewhere.example/s.json"}}}"#,
        ] {
            let error = refused(|settings| settings.parameters = Some(text.to_owned()));
            assert!(matches!(error, EndpointError::Parameters(ParametersError::Schema(_))), "{text}: {error}");
        }
    }

    #[test]
    fn every_other_mistake_is_refused_and_names_its_key() {
        type Row = (EndpointError, &'static str, fn(&mut Endpoint));
        let table: [Row; 7] = [
            (EndpointError::Name, "name", |s| s.name = " ".to_owned()),
            (EndpointError::Body("GET"), "body", |s| s.body = Body::Json),
            (EndpointError::Body("HEAD"), "body", |s| (s.body, s.method) = (Body::Json, Method::Head)),
            (EndpointError::Url(UrlTemplateError::Misplaced("host")), "url", |s| s.url = "http://{city}/".to_owned()),
            (EndpointError::Fixed("city".to_owned()), "parameters", |s| s.url = "http://h/?city=Rome".to_owned()),
            (EndpointError::Credential(CredentialError::Empty("token")), "auth", |s| {
                s.auth = Some(Auth::Bearer { token: Some(Secret::new("")), per_agent: None });
            }),
            (EndpointError::Headers(HeaderError::Reserved("host".to_owned())), "headers", |s| {
                s.headers.insert("Host".to_owned(), Secret::new("h"));
            }),
        ];
        for (expected, key, change) in table {
            let error = refused(change);
            assert_eq!((error.key(), error), (key, expected));
        }
    }
}
