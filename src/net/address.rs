//! Which addresses are not the public internet. Source: the special-purpose registries of IPv4 and IPv6 (RFC 6890),
//! read so that a new kind of transition address is refused, not let through.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kind of a special address, e.g. `loopback`; `None` for a public one.
pub(super) fn special_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

/// The IPv4 address that an IPv6 address stands for on the wire.
pub(super) fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        // Compatible, mapped, translated (RFC 2765) and the well-known prefix of NAT64.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4_of(high, low)),
        _ => None,
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (0, _, _) => Some("unspecified"),
        (127, _, _) => Some("loopback"),
        (10, _, _) | (172, 16..=31, _) | (192, 168, _) => Some("private"),
        (169, 254, _) => Some("link-local"),
        // Shared address space of carriers; clouds keep metadata services in it too.
        (100, 64..=127, _) => Some("carrier-shared"),
        // Public by number, but wired to the platform's own services by Azure.
        (168, 63, 129) => Some("metadata"),
        (192, 0, 0) => Some("protocol-assignment"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("documentation"),
        (192, 88, 99) => Some("6to4-relay"),
        (198, 18..=19, _) => Some("benchmarking"),
        (224..=239, _, _) => Some("multicast"),
        (240..=255, _, _) => Some("reserved"),
        _ => None,
    }
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    if address.is_unspecified() {
        return Some("unspecified");
    }
    if address.is_loopback() {
        return Some("loopback");
    }
    if let Some(inner) = embedded_v4(address) {
        return special_v4(inner);
    }
    let [first, second, third, fourth, universal, isatap, high, low] = address.segments();
    match (first, second, third) {
        (0xff00..=0xffff, _, _) => Some("multicast"),
        (0xfe80..=0xfebf, _, _) => Some("link-local"),
        (0xfec0..=0xfeff, _, _) => Some("site-local"),
        (0xfc00..=0xfdff, _, _) => Some("private"),
        // Whoever answers for these is found by the IPv4 addresses inside; Teredo writes the client's inverted.
        (0x2002, _, _) => special_v4(v4_of(second, third)),
        (0x2001, 0, _) => special_v4(v4_of(third, fourth)).or_else(|| special_v4(v4_of(!high, !low))),
        (0x2001, 0x0db8, _) | (0x3fff, 0..=0x0fff, _) => Some("documentation"),
        (0x2001, 0..=0x01ff, _) => Some("protocol-assignment"),
        // Global unicast is 2000::/3; everything outside of it is not routed on the public internet. Under any prefix
        // an ISATAP interface is reached by the IPv4 address at its end.
        (0x2000..=0x3fff, _, _) if isatap == 0x5efe && matches!(universal, 0 | 0x0200) => special_v4(v4_of(high, low)),
        (0x2000..=0x3fff, _, _) => None,
        _ => Some("reserved"),
    }
}

fn v4_of(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))
}
