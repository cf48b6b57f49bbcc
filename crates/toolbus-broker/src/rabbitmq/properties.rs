//! Message properties, converted between AMQP and the protocol.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use toolbus_bus::PublishError;
use toolbus_protocol::{Properties, header};

/// AMQP's mark of a message that survives a restart of the broker.
const PERSISTENT: u8 = 2;
const TRANSIENT: u8 = 1;
/// Header in which a quorum queue counts earlier deliveries.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// Reads what arrived. Nothing is refused: what has an unexpected type is left out.
pub(super) fn read(amqp: &BasicProperties) -> Properties {
    let text = |value: &Option<ShortString>| value.as_ref().map(|value| value.as_str().to_owned());
    Properties {
        content_type: text(amqp.content_type()),
        message_id: text(amqp.message_id()),
        message_type: text(amqp.kind()),
        correlation_id: text(amqp.correlation_id()),
        reply_to: text(amqp.reply_to()),
        timestamp: *amqp.timestamp(),
        user_id: text(amqp.user_id()),
        expiration: text(amqp.expiration()).and_then(|milliseconds| milliseconds.parse().ok()),
        persistent: *amqp.delivery_mode() == Some(PERSISTENT),
        headers: amqp.headers().as_ref().map(read_headers).unwrap_or_default(),
    }
}

/// Returns the number of times that a quorum queue delivered the message before.
pub(super) fn earlier_deliveries(amqp: &BasicProperties) -> u32 {
    let header = amqp.headers().as_ref().and_then(|headers| headers.inner().get(DELIVERY_COUNT));
    header.and_then(integer).map_or(0, |count| u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}

/// Writes the properties of a message. The broker refuses a `user_id` that is not the login of the connection.
pub(super) fn write(properties: &Properties) -> Result<BasicProperties, PublishError> {
    let mut amqp =
        BasicProperties::default().with_delivery_mode(if properties.persistent { PERSISTENT } else { TRANSIENT });
    if let Some(content_type) = &properties.content_type {
        amqp = amqp.with_content_type(short("content type", content_type)?);
    }
    if let Some(message_id) = &properties.message_id {
        amqp = amqp.with_message_id(short("message id", message_id)?);
    }
    if let Some(message_type) = &properties.message_type {
        amqp = amqp.with_type(short("message type", message_type)?);
    }
    if let Some(correlation_id) = &properties.correlation_id {
        amqp = amqp.with_correlation_id(short("correlation id", correlation_id)?);
    }
    if let Some(reply_to) = &properties.reply_to {
        amqp = amqp.with_reply_to(short("reply address", reply_to)?);
    }
    if let Some(timestamp) = properties.timestamp {
        amqp = amqp.with_timestamp(timestamp);
    }
    if let Some(user_id) = &properties.user_id {
        amqp = amqp.with_user_id(short("user id", user_id)?);
    }
    if let Some(milliseconds) = properties.expiration {
        amqp = amqp.with_expiration(short("expiration", &milliseconds.to_string())?);
    }
    if !properties.headers.is_empty() {
        let mut headers = FieldTable::default();
        for (name, value) in &properties.headers {
            // RabbitMQ refuses short strings as values.
            headers.insert(short("header name", name)?, AMQPValue::LongString(value.as_str().into()));
        }
        amqp = amqp.with_headers(headers);
    }
    Ok(amqp)
}

/// A text that AMQP bounds to 255 bytes.
pub(super) fn short(what: &str, text: &str) -> Result<ShortString, PublishError> {
    ShortString::try_new(text).map_err(|_| PublishError::Refused(format!("the {what} is longer than 255 bytes")))
}

/// Stands for a value that is no text, so that a header which narrows what its sender may do is not lost with it. No
/// profile, binding, key or number is this.
const UNREADABLE: &str = "\u{0}";

fn read_headers(table: &FieldTable) -> Vec<(String, String)> {
    let readable = |(name, value): (&ShortString, &AMQPValue)| {
        let text = header_text(value).or_else(|| narrows(name.as_str()).then(|| UNREADABLE.to_owned()))?;
        Some((name.as_str().to_owned(), text))
    };
    table.into_iter().filter_map(readable).collect()
}

/// Whether a header restricts its sender, such as to one run of a call that it may send again.
fn narrows(name: &str) -> bool {
    let all = [header::TOOL_PROFILE, header::BINDING, header::IDEMPOTENCY_KEY, header::HOPS];
    all.iter().any(|narrow| name == *narrow || name == header::on_the_wire(narrow))
}

fn header_text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => Some(lossy(text)),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        AMQPValue::Boolean(value) => Some(value.to_string()),
        value => integer(value).map(|value| value.to_string()),
    }
}

fn integer(value: &AMQPValue) -> Option<i64> {
    match *value {
        AMQPValue::ShortShortInt(value) => Some(value.into()),
        AMQPValue::ShortShortUInt(value) => Some(value.into()),
        AMQPValue::ShortInt(value) => Some(value.into()),
        AMQPValue::ShortUInt(value) => Some(value.into()),
        AMQPValue::LongInt(value) => Some(value.into()),
        AMQPValue::LongUInt(value) => Some(value.into()),
        AMQPValue::LongLongInt(value) => Some(value),
        _ => None,
    }
}

fn lossy(text: &LongString) -> String {
    String::from_utf8_lossy(text.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, FieldTable};
    use toolbus_bus::PublishError;
    use toolbus_protocol::Properties;
    use toolbus_testing::mutation::check_inputs;

    use super::{UNREADABLE, earlier_deliveries, read, write};

    fn with_headers(headers: Vec<(&str, AMQPValue)>) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert(name.into(), value);
        }
        BasicProperties::default().with_headers(table)
    }

    #[test]
    fn a_narrowing_header_that_is_no_text_is_not_lost() {
        let headers = [
            ("rb-rb-tool-profile", true),
            ("rb-binding", true),
            ("rb-rb-idempotency-key", true),
            ("rb-rb-hops", true),
            ("rb-rb-timeout-ms", false),
        ];
        let mut table = FieldTable::default();
        for (name, _) in headers {
            table.insert(name.into(), AMQPValue::ByteArray(b"text".to_vec().into()));
        }
        let read = read(&BasicProperties::default().with_headers(table));
        for (name, is_kept) in headers {
            assert_eq!(read.header(name), is_kept.then_some(UNREADABLE), "{name}");
        }
    }

    #[test]
    fn properties_survive_writing_and_reading() {
        let properties = Properties {
            content_type: Some("application/json".into()),
            message_id: Some("m1".into()),
            message_type: Some("RockBot.Tools.ToolInvokeRequest".into()),
            correlation_id: Some(String::new()),
            reply_to: Some("tool.result.ana".into()),
            timestamp: Some(1_700_000_000),
            user_id: Some("svc-ana".into()),
            expiration: Some(1500),
            persistent: true,
            headers: vec![("rb-source".into(), "añá".into())],
        };
        assert_eq!(read(&write(&properties).unwrap()), properties);
    }

    #[test]
    fn headers_of_other_types_become_text_or_are_left_out() {
        let amqp = with_headers(vec![
            ("bytes", AMQPValue::LongString(vec![0xff, b'a'].into())),
            ("flag", AMQPValue::Boolean(true)),
            ("nothing", AMQPValue::Void),
            ("number", AMQPValue::LongLongInt(-7)),
            ("table", AMQPValue::FieldTable(FieldTable::default())),
        ]);
        let expected = [("bytes", "\u{fffd}a"), ("flag", "true"), ("number", "-7")];
        assert_eq!(read(&amqp).headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn earlier_deliveries_are_counted_where_the_broker_counts() {
        for (value, expected) in [
            (AMQPValue::LongLongInt(3), 3),
            (AMQPValue::LongLongInt(-3), 0),
            (AMQPValue::LongLongInt(i64::MAX), u32::MAX),
            (AMQPValue::LongString("3".into()), 0),
        ] {
            assert_eq!(earlier_deliveries(&with_headers(vec![("x-delivery-count", value)])), expected);
        }
        assert_eq!(earlier_deliveries(&BasicProperties::default()), 0);
    }

    #[test]
    fn a_string_too_long_for_amqp_is_refused() {
        let long = "x".repeat(256);
        for properties in [
            Properties { correlation_id: Some(long.clone()), ..Properties::default() },
            Properties { headers: vec![(long.clone(), "v".into())], ..Properties::default() },
        ] {
            assert!(matches!(write(&properties), Err(PublishError::Refused(_))));
        }
    }

    const TABLES: &[&[u8]] = &[
        b"\x09rb-sourceS\0\0\0\x03ana\x11rb-rb-timeout-msI\0\0\x27\x10\x10x-delivery-countl\0\0\0\0\0\0\0\x02",
        b"\x07x-deathA\0\0\0\x14F\0\0\0\x0f\x05countl\0\0\0\0\0\0\0\x01\x01ft\x01",
        b"\x01b\x80\x01dd\x3f\xf0\0\0\0\0\0\0\x01TT\0\0\0\0\0\0\0\x01\x01DD\x02\0\0\0\x01\x01VV\x01xx\0\0\0\x01\xff\
          \x01ss\x80\0",
    ];

    #[test]
    fn any_bytes_as_headers_are_the_same_when_they_are_written() {
        check_inputs(TABLES, 3_000, |bytes| {
            let table = [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
            let Ok((_, table)) = lapin::types::parsing::parse_field_table(&table[..]) else { return };
            let amqp = BasicProperties::default().with_headers(table);
            let (properties, _) = (read(&amqp), earlier_deliveries(&amqp));
            let length: usize = properties.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
            // A byte that is no text takes three, and one that is a number four, as in `-128`.
            assert!(length <= 4 * bytes.len(), "{length} bytes of {}", bytes.len());
            if let Ok(written) = write(&properties) {
                assert_eq!(read(&written).headers, properties.headers);
            }
        });
    }
}
