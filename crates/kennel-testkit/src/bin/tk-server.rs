//! A small MCP server that does as it is told, one line at a time.
//!
//! Methods: `initialize`, `ping`, `echo` (answers its params), `slow` (`{"ms": N, "stderr": "…"}`), `die` (no answer,
//! exit code 3), `abandon` (starts a helper that inherits stdin and stdout, or with `{"holds": "stdout"}` only that, and
//! crashes), `say` (`{"stderr": "…"}`), `ask` (sends the client a request `roots/list` with id 7
//! first), `pid`, `long` (`{"bytes": N, "id_last": BOOL}`: an answer of N bytes),
//! `flood` (`{"lines": N, "bytes": M}`: as many notifications of that size first). `tools/list` is one of
//! as many bytes as `TESTKIT_LIST` says. It signs the roll of `TESTKIT_ROLL` if there is one.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "stdout is its protocol, stderr its voice"
)]

use std::io::{BufRead, Write};
use std::time::Duration;

use kennel_sys::events;
use kennel_sys::process::ProcessRef;
use serde_json::value::RawValue;
use serde_json::{Value, json};

#[derive(serde::Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

fn main() {
    if let Some(roll) = std::env::var_os("TESTKIT_ROLL") {
        let me = ProcessRef::me().expect("we are here");
        let mut file = std::fs::File::options()
            .append(true)
            .create(true)
            .open(roll)
            .expect("the roll");
        file.write_all(format!("{}\n", me.identity()).as_bytes())
            .expect("the roll");
    }
    let mut input = std::io::stdin().lock();
    let mut bytes = Vec::new();
    while input.read_until(b'\n', &mut bytes).expect("stdin") > 0 {
        let line: Line<'_> = serde_json::from_slice(&bytes).expect("a line of JSON-RPC");
        if let (Some(method), Some(id)) = (&line.method, line.id) {
            let params = line.params.map_or("null", RawValue::get);
            let result = obey(method, params);
            let id = id.get();
            match method == "long" && params.contains(r#""id_last":true"#) {
                true => println!(r#"{{"result":{result},"jsonrpc":"2.0","id":{id}}}"#),
                false => println!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
            }
        }
        bytes.clear();
        bytes.shrink_to(64 * 1024);
    }
}

fn obey(method: &str, params: &str) -> String {
    let value = || serde_json::from_str::<Value>(params).expect("params");
    match method {
        "initialize" => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": list_bytes().is_some()}},
            "serverInfo": {"name": "tk-server", "version": "0"},
        })
        .to_string(),
        "ping" => "{}".to_owned(),
        "echo" => params.to_owned(),
        "pid" => std::process::id().to_string(),
        "slow" => {
            if let Some(words) = value()["stderr"].as_str() {
                eprintln!("{words}");
            }
            let millis = value()["ms"].as_u64().expect("ms");
            events::sleep(&[], &[], Some(Duration::from_millis(millis))).expect("a nap");
            "\"slow\"".to_owned()
        }
        "say" => {
            eprintln!("{}", value()["stderr"].as_str().expect("stderr"));
            "\"said\"".to_owned()
        }
        "ask" => {
            println!(r#"{{"jsonrpc":"2.0","id":7,"method":"roots/list"}}"#);
            "\"asked\"".to_owned()
        }
        "long" => {
            let bytes = value()["bytes"].as_u64().expect("bytes");
            format!("\"{}\"", "x".repeat(bytes as usize))
        }
        "tools/list" if list_bytes().is_some() => {
            let bytes = list_bytes().unwrap_or_default();
            format!(r#"{{"tools":["{}"]}}"#, "x".repeat(bytes))
        }
        "flood" => {
            let number = |name: &str| value()[name].as_u64().expect("a number") as usize;
            let text = "x".repeat(number("bytes"));
            let notes = (0..number("lines")).map(|line| {
                format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/flood","params":{{"line":{line},"text":"{text}"}}}}"#
                )
            });
            match value()["batch"] == true {
                true => println!("[{}]", notes.collect::<Vec<_>>().join(",")),
                false => notes.for_each(|note| println!("{note}")),
            }
            "\"flooded\"".to_owned()
        }
        "abandon" => {
            let mut helper = std::process::Command::new("sleep");
            helper.arg("600");
            if value()["holds"] == "stdout" {
                helper.stdin(std::process::Stdio::null());
            }
            // Not waited for: it outlives this process, and has its stdio.
            drop(helper.spawn().expect("a helper"));
            std::process::abort()
        }
        "die" => std::process::exit(3),
        other => json!({"unknown": other}).to_string(),
    }
}

/// The length of its list of tools; `None` if it has none.
fn list_bytes() -> Option<usize> {
    std::env::var("TESTKIT_LIST").ok()?.parse().ok()
}
