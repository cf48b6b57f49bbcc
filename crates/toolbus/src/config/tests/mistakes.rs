use super::*;

/// An endpoint that is in order but for these lines.
fn endpoint(lines: &str) -> String {
    format!("[[rest.endpoints]]\nname = 'get'\ndescription = 'Gets'\nurl = 'http://host/'\n{lines}")
}

#[test]
fn an_unknown_section_is_told_with_the_nearest() {
    insta::assert_snapshot!(problems("[buss]\nname = 'x'"), @"");
}

#[test]
fn an_unknown_key_is_told_with_the_nearest() {
    insta::assert_snapshot!(problems("[invoke]\nmax_timout = '60s'"), @"");
}

#[test]
fn a_key_of_a_part_that_is_not_there_is_unknown() {
    insta::assert_snapshot!(problems("[mcp]\nservers_file = 'mcp.json'"), @"");
}

#[test]
fn an_unknown_key_inside_a_map_and_inside_a_list_is_told() {
    insta::assert_snapshot!(problems("[tools.limits.'web_*']\ntimeot = '1s'"), @"");
    insta::assert_snapshot!(problems(&endpoint("efect = 'read-only'")), @"");
}

#[test]
fn a_wrong_type_is_told() {
    insta::assert_snapshot!(problems("[bus]\nurl = 5\nname = []\ntls = 'x'\n[tools]\necho = 'yes'"), @"");
    insta::assert_snapshot!(problems("[invoke]\nmax_timeout = 60\nmax_in_flight = 1.5\ntopics = 'tool.invoke'"), @"");
    insta::assert_snapshot!(problems("bus = true"), @"");
}

#[test]
fn a_date_and_a_number_out_of_range_are_told() {
    insta::assert_snapshot!(problems("[invoke]\nmax_timeout = 1979-05-27\nmax_waiting = 99999999999999999999"), @"");
}

#[test]
fn an_unknown_choice_is_told_with_the_nearest() {
    insta::assert_snapshot!(problems("[bus]\nqueue_type = 'qourum'\n[telemetry]\nprotocol = 'http'\nlog = 'inof'"), @"");
    insta::assert_snapshot!(problems("[daemon]\nroles = ['mcp']"), @"");
}

#[test]
fn a_number_out_of_range_is_told() {
    insta::assert_snapshot!(problems("[invoke]\nmax_in_flight = 0\nmax_waiting = -1"), @"");
    insta::assert_snapshot!(problems("[invoke]\nmax_in_flight = 60000\nmax_waiting = 6000"), @"");
}

#[test]
fn an_unknown_unit_is_told() {
    insta::assert_snapshot!(problems("[invoke]\nmax_timeout = '2mins'\nmax_body = '1MB'\ndrain_timeout = '0s'"), @"");
}

#[test]
fn the_longest_time_cannot_be_shorter_than_the_usual_one() {
    insta::assert_snapshot!(problems("[invoke]\ndefault_timeout = '60s'\nmax_timeout = '30s'"), @"");
}

#[test]
fn answers_cannot_go_where_requests_come_from() {
    insta::assert_snapshot!(problems("[bus]\nreply_topics = ['tool.result.#', 'tool.*']"), @"");
    insta::assert_snapshot!(problems("[invoke]\ntopics = ['my.calls.#']\ndefault_reply_topic = 'my.calls.done'"), @"");
}

#[test]
fn an_address_to_listen_on_is_an_ip_and_a_port() {
    insta::assert_snapshot!(problems("[http]\nlisten = 'localhost:8471'"), @"");
}

#[test]
fn names_on_the_broker_must_be_usable_and_ours() {
    insta::assert_snapshot!(problems("[bus]\nqueue_prefix = ''\nname = ''\nexchange = 'amq.topic'"), @"");
    insta::assert_snapshot!(problems("[bus]\nqueue_prefix = 'rockbot.x'\nexchange = 'x'\ndead_letter_exchange = 'x'"), @"");
    insta::assert_snapshot!(problems("[bus]\nqueue_prefix = 'amq.x'\nreply_topics = ['a..b', 're*']"), @"");
    insta::assert_snapshot!(problems(&format!("[bus]\nname = '{}'", "x".repeat(256))), @"");
}

#[test]
fn certificates_must_be_there_and_belong_together() {
    insta::assert_snapshot!(problems("[bus.tls]\nca = '/nonexistent/ca.pem'\ncert = '/dev/null'"), @"");
}

#[test]
fn an_endpoint_must_be_complete() {
    insta::assert_snapshot!(problems("[[rest.endpoints]]\nname = 'get'"), @"");
}

#[test]
fn two_tools_cannot_have_one_name() {
    insta::assert_snapshot!(problems(&(endpoint("") + "\n" + &endpoint(""))), @"");
    insta::assert_snapshot!(problems(&endpoint("").replace("'get'", "'current_time'")), @"");
}

#[test]
fn parameters_must_be_a_json_schema_that_has_the_arguments_of_the_address() {
    insta::assert_snapshot!(problems(&endpoint("parameters = '{\"type\":'")), @"");
    insta::assert_snapshot!(problems(&endpoint("parameters = '{\"type\":\"object\",\"required\":5}'")), @"");
    insta::assert_snapshot!(problems(&endpoint("").replace("host/", "host/{city}")), @"");
}

#[test]
fn an_argument_cannot_choose_the_host() {
    insta::assert_snapshot!(problems(&endpoint("").replace("http://host", "http://{host}")), @"");
}

#[test]
fn auth_must_be_of_a_known_kind_and_complete() {
    insta::assert_snapshot!(problems(&endpoint("auth = { type = 'bearr', token = 'x' }")), @"");
    insta::assert_snapshot!(problems(&endpoint("auth = { token = 'x' }")), @"");
    insta::assert_snapshot!(problems(&endpoint("auth = { type = 'api_key', kee = 'x' }")), @"");
    insta::assert_snapshot!(problems(&endpoint("auth = 'bearer'")), @"");
}

#[test]
fn every_mistake_of_an_endpoint_is_told() {
    let lines = "body = 'json'\nparameters = '['\nheaders = { Host = 'x' }\nauth = { type = 'basic', username = 'a:b', password = 'c' }";
    insta::assert_snapshot!(problems(&endpoint(lines)), @"");
}

#[test]
fn a_required_tool_must_be_configured() {
    insta::assert_snapshot!(problems("[tools]\nrequired = ['curent_time', 'convert_time']"), @"");
}

#[test]
fn a_syntax_error_is_told_with_its_line() {
    insta::assert_snapshot!(problems("[bus]\nname = 'x\nurl = 'y'"), @"");
    insta::assert_snapshot!(problems("[bus]\nname = 'x'\nname = 'y'"), @"");
    insta::assert_snapshot!(problems("[bus\n"), @"");
}

#[test]
fn a_file_that_cannot_be_read_is_told() {
    let sources = Sources { files: vec!["/nonexistent/toolbus.toml".into()], ..Sources::default() };
    insta::assert_snapshot!(Config::load(&sources).unwrap_err(), @"");
    let sources = Sources { files: vec!["/dev/zero".into()], ..Sources::default() };
    insta::assert_snapshot!(Config::load(&sources).unwrap_err(), @"");
}

#[test]
fn all_mistakes_of_all_layers_are_told_at_once() {
    let first = "[bus]\nulr = 'x'\nqueue_type = 5\n[invoke]\ndefault_timeout = '90s'\nmax_timeout = '60s'\n";
    let second = "[http]\nlisten = 'x'\n[tools]\nrequired = ['ecko']\n";
    let environment = [("TOOLBUS__INVOKE__MAX_BODY", "huge"), ("TOOLBUS__INVOKE__MAX_BDY", "1MiB")];
    let told = load(&[first, second], &environment, &[("bus.name", "")]).unwrap_err();
    insta::assert_snapshot!(told, @"");
}

#[test]
fn what_depends_on_a_mistake_is_not_told_as_another() {
    insta::assert_snapshot!(problems("[invoke]\ndefault_timeout = 'soon'\nmax_timeout = '10s'"), @"");
}
