//! What is read from the wire means the same when it is said again.

use kennel_core::hello::{ClientHello, Control, DaemonHello};

pub(crate) fn check(bytes: &[u8]) {
    match ClientHello::parse(bytes) {
        None => assert!(!bytes.starts_with(b"!hello "), "a hello"),
        Some(Err(why)) => drop(why.to_string()),
        Some(Ok(hello)) => {
            let line = one_line(hello.line());
            assert_eq!(ClientHello::parse(&line), Some(Ok(hello)));
        }
    }
    if let Ok(hello) = DaemonHello::parse(bytes) {
        let line = one_line(hello.line());
        assert_eq!(DaemonHello::parse(&line), Ok(hello));
    }
    for parse in [Control::parse_from_client, Control::parse_from_daemon] {
        match parse(bytes) {
            None => assert!(!bytes.starts_with(b"!"), "Kennel's own"),
            Some(control) => {
                let line = one_line(control.line());
                assert_eq!(parse(&line), Some(control));
            }
        }
    }
}

fn one_line(line: Vec<u8>) -> Vec<u8> {
    assert!(!line.contains(&b'\n'), "one line");
    line
}
