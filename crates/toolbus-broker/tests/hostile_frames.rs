//! Reading of whatever a hostile sender may put into properties, so that one message cannot cost the connection.
//!
//! RabbitMQ carries these bytes as they are. They pass because of `vendor/amq-protocol-types`; with the published crate
//! the first test fails, and the second ends the process.

use amq_protocol_types::parsing::{parse_field_table, parse_short_string};

#[test]
fn a_short_string_that_is_no_text_is_read() {
    let (rest, text) = parse_short_string(&[3, 0xff, b'a', 0xfe][..]).unwrap();
    assert!(rest.is_empty());
    assert_eq!(text.as_str(), "\u{fffd}a\u{fffd}");
}

#[test]
fn a_short_string_of_full_length_stays_within_its_length() {
    let bytes = [&[255][..], &[0xff; 255]].concat();
    assert_eq!(parse_short_string(&bytes[..]).unwrap().1.as_str().len(), 255);
}

#[test]
fn tables_nested_without_end_are_read() {
    let mut table = Vec::new();
    for _ in 0..18_000 {
        let length = u32::try_from(table.len()).unwrap().to_be_bytes();
        table = [&[0, b'F'][..], &length, &table].concat();
    }
    let length = u32::try_from(table.len()).unwrap().to_be_bytes();
    let bytes = [&length[..], &table].concat();
    assert!(parse_field_table(&bytes[..]).unwrap().0.is_empty());
}
