//! A reader of AMQP 0-9-1 frames: as much as a published message needs.
//!
//! It is written from the specification, apart from the AMQP library, so that the examples are judged by a second eye.

use toolbus_protocol::Properties;

/// One frame: its kind (1 method, 2 header, 3 body), channel and payload.
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) channel: u16,
    pub(crate) payload: Vec<u8>,
}

/// The method `basic.publish`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Publish {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) mandatory: bool,
    pub(crate) immediate: bool,
}

/// The content header of a message.
pub(crate) struct ContentHeader {
    pub(crate) flags: u16,
    pub(crate) body_size: u64,
    pub(crate) properties: Properties,
}

/// Splits a dump of hexadecimal digits into frames, checking every frame's end.
pub(crate) fn frames(hex: &str) -> Vec<Frame> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let bytes: Vec<u8> =
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect();
    let mut reader = Reader { bytes: &bytes };
    let mut frames = Vec::new();
    while !reader.bytes.is_empty() {
        let (kind, channel) = (reader.u8(), reader.u16());
        let length = reader.u32() as usize;
        let payload = reader.take(length).to_vec();
        assert_eq!(reader.u8(), 0xce, "frame end");
        frames.push(Frame { kind, channel, payload });
    }
    frames
}

/// Reads a method frame, which must be `basic.publish`.
pub(crate) fn publish(frame: &Frame) -> Publish {
    assert_eq!((frame.kind, frame.channel), (1, 1));
    let mut reader = Reader { bytes: &frame.payload };
    assert_eq!((reader.u16(), reader.u16()), (60, 40), "basic.publish");
    assert_eq!(reader.u16(), 0, "reserved");
    let (exchange, routing_key, bits) = (reader.short_string(), reader.short_string(), reader.u8());
    reader.end();
    Publish { exchange, routing_key, mandatory: bits & 1 != 0, immediate: bits & 2 != 0 }
}

/// Reads a content header frame; properties that no peer sets must be absent.
pub(crate) fn content_header(frame: &Frame) -> ContentHeader {
    assert_eq!((frame.kind, frame.channel), (2, 1));
    let mut reader = Reader { bytes: &frame.payload };
    assert_eq!((reader.u16(), reader.u16()), (60, 0), "class basic, weight 0");
    let body_size = reader.u64();
    let flags = reader.u16();
    let has = |bit: u16| flags & (1 << bit) != 0;
    for (bit, name) in [(14, "encoding"), (11, "priority"), (8, "expiration"), (4, "user"), (3, "app"), (2, "cluster")]
    {
        assert!(!has(bit), "unexpected property: {name}");
    }
    let content_type = has(15).then(|| reader.short_string());
    let headers = if has(13) { reader.table() } else { Vec::new() };
    let persistent = has(12) && reader.u8() == 2;
    let correlation_id = has(10).then(|| reader.short_string());
    let reply_to = has(9).then(|| reader.short_string());
    let message_id = has(7).then(|| reader.short_string());
    let timestamp = has(6).then(|| reader.u64());
    let message_type = has(5).then(|| reader.short_string());
    reader.end();
    let properties = Properties {
        content_type,
        message_id,
        message_type,
        correlation_id,
        reply_to,
        timestamp,
        user_id: None,
        expiration: None,
        persistent,
        headers,
    };
    ContentHeader { flags, body_size, properties }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        taken
    }

    fn u8(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self, length: usize) -> String {
        String::from_utf8(self.take(length).to_vec()).unwrap()
    }

    fn short_string(&mut self) -> String {
        let length = usize::from(self.u8());
        self.text(length)
    }

    fn table(&mut self) -> Vec<(String, String)> {
        let length = self.u32() as usize;
        let mut inner = Reader { bytes: self.take(length) };
        let mut entries = Vec::new();
        while !inner.bytes.is_empty() {
            let name = inner.short_string();
            assert_eq!(inner.u8(), b'S', "peers send long strings only");
            let length = inner.u32() as usize;
            entries.push((name, inner.text(length)));
        }
        entries
    }

    fn end(&self) {
        assert!(self.bytes.is_empty(), "{} bytes left over", self.bytes.len());
    }
}
