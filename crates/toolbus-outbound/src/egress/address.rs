//! Addresses that are not of the public Internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address at which virtual machines of Azure reach their host, which hands out credentials.
const AZURE_HOST: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Describes an address, unless it is a unicast address of the public Internet, such as "a private network".
pub(super) fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

/// The registry of special-purpose addresses of IANA (RFC 6890), multicast and class E.
fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    Some(match address.octets() {
        _ if address == AZURE_HOST => "the metadata service of a cloud",
        [0, ..] => "this machine",
        [127, ..] => "loopback",
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => "a private network",
        [100, 64..=127, ..] => "a carrier's private network",
        [169, 254, ..] => "link-local, where clouds have their metadata",
        [192, 0, 0, _] | [192, 88, 99, _] | [240..=255, ..] => "reserved",
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => "for documentation",
        [198, 18..=19, ..] => "for benchmarks",
        [224..=239, ..] => "multicast",
        _ => return None,
    })
}

/// Of IPv6, only `2000::/3` is given out. Addresses that carry one of IPv4 are refused whatever they carry: where they
/// lead depends on translators that nothing here knows.
fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    Some(match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => "this machine",
        [0, 0, 0, 0, 0, 0, 0, 1] => "loopback",
        // Compatible, mapped and translated addresses, NAT64, 6to4, Teredo and ISATAP.
        [0, 0, 0, 0, 0, 0, ..]
        | [0, 0, 0, 0, 0, 0xffff, ..]
        | [0, 0, 0, 0, 0xffff, 0, ..]
        | [0x64, 0xff9b, ..]
        | [0x2002, ..]
        | [0x2001, 0, ..]
        | [_, _, _, _, 0 | 0x200, 0x5efe, ..] => "an IPv4 address within IPv6",
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => "for documentation",
        [0x2001, 0..=0x1ff, ..] => "reserved",
        [0xfc00..=0xfdff, ..] => "a private network",
        [0xfe80..=0xfebf, ..] => "link-local",
        [0xfec0..=0xfeff, ..] => "a private network",
        [0xff00..=0xffff, ..] => "multicast",
        [0x2000..=0x3fff, ..] => return None,
        _ => "reserved",
    })
}
