//! What is learned of the server's protocol on the way.

use kennel_core::session::{Session, Verdict};

const MODERN: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

fn asked(method: &str, params: &str, answer: &str) -> Option<bool> {
    let mut session = Session::new();
    session.handle_upstream_attached();
    let line = format!(r#"{{"jsonrpc":"2.0","id":"a","method":"{method}","params":{params}}}"#);
    assert_eq!(session.handle_app_line(line.as_bytes()), Verdict::Forward);
    assert_eq!(session.is_modern(), None, "nobody has answered");
    let line = format!(r#"{{"jsonrpc":"2.0","id":"a",{answer}}}"#);
    assert_eq!(
        session.handle_upstream_line(line.as_bytes()),
        Verdict::Forward
    );
    session.is_modern()
}

#[test]
fn the_answer_to_the_first_request_tells_what_the_server_speaks() {
    let modern = format!(r#"{{"_meta":{MODERN}}}"#);
    let (good, bad) = (r#""result":{}"#, r#""error":{"code":-32601,"message":""}"#);
    assert_eq!(asked("server/discover", &modern, good), Some(true));
    assert_eq!(asked("server/discover", &modern, bad), Some(false));
    let complete = r#""result":{"resultType":"complete"}"#;
    assert_eq!(asked("tools/list", &modern, complete), Some(true));
    // A lenient legacy server answers it as well.
    assert_eq!(asked("tools/list", &modern, good), None);
    // A refused call says nothing about the protocol.
    assert_eq!(asked("tools/call", &modern, bad), None);
    let legacy = r#"{"protocolVersion":"2025-06-18","capabilities":{}}"#;
    assert_eq!(asked("initialize", legacy, good), None);
}
