//! Tests of the parser and the printer of NBD URIs.

use block::env::Address;
use proptest::prelude::*;
use wire::nbd::uri::{NbdUri, UriError};

fn tcp(tls: bool, host: &str, port: u16, export: &str) -> NbdUri {
    let address = Address::Tcp(host.to_owned(), port);
    NbdUri { tls, address, export: export.to_owned(), certificates: None, hostname: None }
}

fn unix(tls: bool, path: &str, export: &str) -> NbdUri {
    let address = Address::Unix(path.into());
    NbdUri { tls, address, export: export.to_owned(), certificates: None, hostname: None }
}

#[test]
fn nbd_uri_parses_and_prints_canonical_form() {
    let cases = [
        ("nbd://host", tcp(false, "host", 10809, ""), "nbd://host/"),
        ("nbd://host:/", tcp(false, "host", 10809, ""), "nbd://host/"),
        ("NBD://host:10810/disk", tcp(false, "host", 10810, "disk"), "nbd://host:10810/disk"),
        ("nbds://10.0.0.1/a/b", tcp(true, "10.0.0.1", 10809, "a/b"), "nbds://10.0.0.1/a/b"),
        ("nbd://host//a", tcp(false, "host", 10809, "/a"), "nbd://host//a"),
        ("nbd://[::1]:10810/x", tcp(false, "::1", 10810, "x"), "nbd://[::1]:10810/x"),
        ("nbd://[::1]", tcp(false, "::1", 10809, ""), "nbd://[::1]/"),
        ("nbd://h/%c3%a9%20%3F", tcp(false, "h", 10809, "é ?"), "nbd://h/%C3%A9%20%3F"),
        ("nbd+unix:///?socket=/s", unix(false, "/s", ""), "nbd+unix:///?socket=/s"),
        (
            "nbds+unix:///d%26?socket=%2Frun/a%3Db",
            unix(true, "/run/a=b", "d&"),
            "nbds+unix:///d%26?socket=/run/a%3Db",
        ),
        ("nbd+unix://?socket=s", unix(false, "s", ""), "nbd+unix:///?socket=s"),
    ];
    for (text, value, canonical) in cases {
        assert_eq!(text.parse().as_ref(), Ok(&value), "{text}");
        assert_eq!(value.to_string(), canonical);
    }
}

#[test]
fn nbd_uri_accepts_tls_parameters_only_with_tls_scheme() {
    let text = "nbds://h/d?tls-certificates=/etc/a%20b&tls-hostname=other";
    let uri: NbdUri = text.parse().unwrap();
    assert_eq!(uri.certificates.as_deref(), Some("/etc/a b"));
    assert_eq!(uri.hostname.as_deref(), Some("other"));
    assert_eq!(uri.to_string(), text);
    let text = "nbds+unix:///d?socket=/s&tls-certificates=/c";
    assert_eq!(text.parse::<NbdUri>().unwrap().to_string(), text);
    for text in ["nbd://h/d?tls-hostname=x", "nbd+unix:///d?socket=/s&tls-certificates=/c"] {
        assert!(text.parse::<NbdUri>().is_err(), "{text}");
    }
}

#[test]
fn nbd_uri_error_names_invalid_part() {
    let cases = [
        ("", "the scheme is \"\""),
        ("host:10809", "the scheme is \"host:10809\""),
        ("http://host/", "the scheme is \"http\""),
        ("nbd+vsock://2/", "the scheme is \"nbd+vsock\""),
        ("nbd:///disk", "the host is \"\""),
        ("nbd://:1/", "the host is \":1\""),
        ("nbd://[::1/", "the host is \"[::1\""),
        ("nbd://[::1]x/", "the host is \"[::1]x\""),
        ("nbd://user@host/", "the host is \"user@host\""),
        ("nbd://host:0/", "the port is \"0\""),
        ("nbd://host:65536/", "the port is \"65536\""),
        ("nbd://host:+1/", "the port is \"+1\""),
        ("nbd://::1/", "the host is \"::1\""),
        ("nbd://host/d?socket=/s", "the parameter \"socket=/s\""),
        ("nbd+unix://host/d?socket=/s", "has the host \"host\""),
        ("nbd+unix:///d", "has no socket path"),
        ("nbd+unix:///d?socket=", "has no socket path"),
        ("nbd+unix:///d?socket=/a&socket=/b", "the parameter \"socket=/b\""),
        ("nbd+unix:///d?tls=1", "the parameter \"tls=1\""),
        ("nbd://host/%", "\"%\" has a %"),
        ("nbd://host/%2", "\"%2\" has a %"),
        ("nbd://host/%+1", "\"%+1\" has a %"),
        ("nbd://host/%ff", "\"%ff\" has a %"),
        ("nbd://host/%00", "\"%00\" has a %"),
        ("nbd://host/a#b", "cannot have a fragment"),
    ];
    for (text, expected) in cases {
        let error: UriError = text.parse::<NbdUri>().expect_err(text);
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn nbd_uri_parses_from_printed_text(
        tls: bool, over_tcp: bool, host in "[a-z0-9.: é%]{1,20}", path in "[^\0]{1,40}",
        port in 1u16.., export in "[^\0]{0,40}",
    ) {
        let uri = if over_tcp { tcp(tls, &host, port, &export) } else { unix(tls, &path, &export) };
        prop_assert_eq!(uri.to_string().parse(), Ok(uri));
    }

    #[test]
    fn nbd_uri_parser_never_panics_on_random_text(text in "(nbd|nbds|nbd\\+unix)?(://)?[\\PC]{0,60}") {
        if let Ok(uri) = text.parse::<NbdUri>() {
            prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        }
    }
}
