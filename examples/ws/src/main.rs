//! A WebSocket server that guards itself: it echoes what it is told, and ends when its owner is gone and
//! its last session closed. Nobody has to end it, whatever is killed.
//!
//! ```sh
//! WS_OWNER_PID=$$ cargo run -p ws -- --port 9500
//! ```
//!
//! What it takes to be such a server is marked with numbers below; the rest is axum.
#![expect(
    clippy::print_stderr,
    reason = "a server of its own: it tells people why it does not listen"
)]

use std::future::IntoFuture;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::get;
use kennel_guard::{Guard, Lease};
use tokio::net::TcpListener;

/// Exit code for a port that somebody else has.
const PORT_HELD: u8 = 98;

fn main() -> ExitCode {
    // 1. First thing: before threads run, and while its owner is still who it is.
    let builder = Guard::builder("ws")
        .owner_from_env("WS_OWNER_PID")
        // Detached on purpose: it is bound to its owner, not to whoever started it.
        .watch_parent(false);
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("ws: {problem}\nusage: ws [--port P] [--grace MS]");
            return ExitCode::from(2);
        }
    };
    let guard = match builder.grace(options.grace).acquire() {
        Ok(guard) => guard,
        Err(refusal) => return fail(&refusal.to_string()),
    };
    for notice in guard.notices() {
        eprintln!("ws: {notice}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(serve(guard, options.port)),
        Err(error) => fail(&format!("no runtime: {error}")),
    }
}

async fn serve(guard: Guard, port: u16) -> ExitCode {
    let listener = match TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await {
        Ok(listener) => listener,
        Err(error) => {
            // 2. Who has the port, in words.
            let holders = kennel_guard::port_holders(port).unwrap_or_default();
            let by = holders.first().map(|holder| format!(", held by {holder}"));
            eprintln!("ws: port {port}: {error}{}", by.unwrap_or_default());
            return ExitCode::from(PORT_HELD);
        }
    };
    if let Ok(address) = listener.local_addr() {
        say(&format!("listening {}", address.port()));
    }
    // 3. The end, whatever its reason: the owner is gone and nobody is here, or a signal.
    let stopping = guard.stopping();
    let guard = Arc::new(guard);
    let app = Router::new()
        .route("/", get(open))
        .with_state(guard.clone());
    tokio::select! {
        reason = stopping => say(&format!("ended: {reason}")),
        served = axum::serve(listener, app).into_future() => if let Err(error) = served {
            return fail(&format!("it serves no more: {error}"));
        },
    }
    ExitCode::SUCCESS
}

/// A session begins when its connection is there, and not when it has introduced itself.
async fn open(State(guard): State<Arc<Guard>>, upgrade: WebSocketUpgrade) -> Response {
    // 4. As long as this lives, the server does.
    let lease = guard.lease();
    upgrade.on_upgrade(|socket| session(socket, lease))
}

async fn session(mut socket: WebSocket, lease: Lease) {
    // A client that was killed is an end, or an error: either way it is over.
    while let Some(Ok(message)) = socket.recv().await {
        let Message::Text(text) = message else {
            continue;
        };
        let answer = match text.as_str() {
            "pid" => Message::from(std::process::id().to_string()),
            _ => Message::Text(text),
        };
        if socket.send(answer).await.is_err() {
            break;
        }
    }
    drop(lease);
}

struct Options {
    port: u16,
    grace: Duration,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            port: 9500,
            grace: Duration::from_secs(5),
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or(format!("{name} needs a value"))?;
            let number: u64 = value
                .parse()
                .map_err(|_| format!("{value:?} is not a number"))?;
            match name.as_str() {
                "--port" => options.port = u16::try_from(number).map_err(|_| "no such port")?,
                "--grace" => options.grace = Duration::from_millis(number),
                other => return Err(format!("no option is called {other:?}")),
            }
        }
        Ok(options)
    }
}

/// Not `println!`, which panics where nobody reads: whoever started it may be gone, and it is not.
fn say(words: &str) {
    let _ = writeln!(std::io::stdout(), "{words}");
}

fn fail(words: &str) -> ExitCode {
    eprintln!("ws: {words}");
    ExitCode::FAILURE
}
