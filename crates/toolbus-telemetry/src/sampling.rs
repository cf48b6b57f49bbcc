use opentelemetry_sdk::trace::Sampler;

use crate::environment::{Environment, EnvironmentError, error};

/// The sampler that `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` name; by default what the sender decided, and
/// every trace that begins here.
pub(crate) fn sampler(environment: &Environment<'_>) -> Result<Sampler, EnvironmentError> {
    let name = environment.get("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".to_owned());
    let (root, follows_parent) = match name.strip_prefix("parentbased_") {
        Some(root) => (root, true),
        None => (name.as_str(), false),
    };
    let root = match root {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => Sampler::TraceIdRatioBased(ratio(environment)?),
        _ => {
            let expected = "use always_on, always_off, traceidratio, or one of these after parentbased_";
            return Err(error("OTEL_TRACES_SAMPLER", expected));
        }
    };
    Ok(if follows_parent { Sampler::ParentBased(Box::new(root)) } else { root })
}

fn ratio(environment: &Environment<'_>) -> Result<f64, EnvironmentError> {
    let variable = "OTEL_TRACES_SAMPLER_ARG";
    let Some(text) = environment.get(variable) else { return Ok(1.0) };
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| error(variable, "use a number from 0 to 1"))
}

#[cfg(test)]
mod tests {
    use super::sampler;
    use crate::environment::Environment;

    fn read(name: &str, argument: Option<&str>) -> Result<String, String> {
        let look_up = |variable: &str| match variable {
            "OTEL_TRACES_SAMPLER" => Some(name.to_owned()),
            "OTEL_TRACES_SAMPLER_ARG" => argument.map(str::to_owned),
            _ => None,
        };
        let read = sampler(&Environment::new(&look_up));
        read.map(|sampler| format!("{sampler:?}")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_senders_decision_is_followed_by_default() {
        assert_eq!(read("", None).unwrap(), "ParentBased(AlwaysOn)");
    }

    #[test]
    fn every_standard_sampler_is_known() {
        assert_eq!(read("always_on", None).unwrap(), "AlwaysOn");
        assert_eq!(read("always_off", None).unwrap(), "AlwaysOff");
        assert_eq!(read("traceidratio", Some("0.01")).unwrap(), "TraceIdRatioBased(0.01)");
        assert_eq!(read("parentbased_always_off", None).unwrap(), "ParentBased(AlwaysOff)");
        assert_eq!(read("parentbased_traceidratio", None).unwrap(), "ParentBased(TraceIdRatioBased(1.0))");
    }

    #[test]
    fn an_unknown_sampler_and_a_bad_ratio_are_errors() {
        assert!(read("xray", None).unwrap_err().starts_with("OTEL_TRACES_SAMPLER: "));
        assert!(read("traceidratio", Some("2")).unwrap_err().starts_with("OTEL_TRACES_SAMPLER_ARG: "));
    }
}
