//! `notes serve`: one MCP session on stdin and stdout, as long as somebody needs it.

use std::sync::Arc;
use std::time::Duration;

use kennel_guard::{Guard, GuardBuilder, Refusal};
use rmcp::ServiceExt as _;
use rmcp::service::ServerInitializeError;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::cli;
use crate::failure::{self, Failure};
use crate::place::Place;
use crate::server::Notes;
use crate::store::Store;

/// The variable a spawner sets instead of `--owner-pid`.
const OWNER: &str = "NOTES_OWNER_PID";
/// How long a shutdown waits for what is being written, be it answers or notes.
const FAREWELL: Duration = Duration::from_millis(300);

pub(crate) fn run(args: &cli::Serve, guard: GuardBuilder) -> Result<(), Failure> {
    let place = Place::of(&args.store)?;
    // Before any thread exists, for it takes a variable out of the environment (lesson 22).
    let guard = acquire(place.guarded_by(guard), args).map_err(failure_of)?;
    for notice in guard.notices() {
        failure::say(&format!("warning: {notice}"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start the event loop: {error}")))?;
    let store = Arc::new(Mutex::new(Store::at(&place.db)));
    let (outcome, last_turn) = runtime.block_on(async {
        let outcome = converse(&guard, Notes::on(store.clone())).await;
        (outcome, timeout(FAREWELL, store.lock_owned()).await)
    });
    // A thread may sit in a read of stdin for good.
    runtime.shutdown_background();
    match last_turn {
        Ok(mut store) => {
            store.close();
            drop(guard);
        }
        // A slow disk is still at it: the lock must outlive that (rule 7), and goes with the
        // process, after its last thread.
        Err(_) => std::mem::forget(guard),
    }
    outcome
}

fn acquire(mut guard: GuardBuilder, args: &cli::Serve) -> Result<Guard, Refusal> {
    guard = guard.owner_from_env(OWNER);
    if let Some(owner) = &args.owner_pid {
        guard = guard.owner(owner);
    }
    if args.coexist {
        guard = guard.coexist();
    }
    // No linger: the session is its stdin, and ends with it or with the process that started it.
    guard.acquire()
}

fn failure_of(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Owner(_) => Failure::refused(refusal),
        _ => Failure::failed(refusal),
    }
}

/// The session: from the handshake to the end of stdin, or to the guard's word.
async fn converse(guard: &Guard, notes: Notes) -> Result<(), Failure> {
    let session = tokio::select! {
        session = notes.serve(rmcp::transport::stdio()) => session,
        _ = guard.stopping() => return Ok(()),
    };
    let session = match session {
        Ok(session) => session,
        // The app changed its mind before the first word.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => {
            return Err(Failure::failed(format!(
                "the client did not begin an MCP session: {error}"
            )));
        }
    };
    // From here on somebody is connected: an owner that goes does not cut a live session (rule 3).
    let _connected = guard.lease();
    let hang_up = session.cancellation_token();
    let mut ended = std::pin::pin!(session.waiting());
    tokio::select! {
        // The end of stdin; what was asked before it has been answered.
        _ = &mut ended => {}
        // An ordinary end, whatever the reason: nothing to say (lesson 40).
        _ = guard.stopping() => {
            hang_up.cancel();
            // Whoever does not read its answers now is not waited for.
            let _ = timeout(FAREWELL, ended).await;
        }
    }
    Ok(())
}
