//! Finds or starts the daemon of a key: one daemon per key, however many shims try at once (rule 1).
//!
//! [`kennel_core::election`] decides the next step and when to give up. The [driver] carries the steps out: it
//! [connects](connect), takes locks, sends the [hello], [starts](spawn) a daemon, and kills a daemon that is [stuck] or
//! was stopped [before it was ready](starting).
//!
//! Three things are polled within a deadline, because the kernel has no event for them (rule 10): a lock that another process
//! holds, a socket whose queue is full, and a daemon that may be stuck. Therefore an election runs on a separate thread, and
//! the shim reads its app meanwhile. Only the first attempt to connect runs on the shim's thread: a running daemon answers
//! sooner than a thread starts.

mod connect;
mod driver;
mod former;
mod hello;
mod sleep;
mod spawn;
mod starting;
pub(crate) mod stuck;
#[cfg(test)]
mod tests;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kennel_core::election::DaemonReply;
use kennel_core::hello::ClientHello;
use kennel_sys::events::Waker;
use kennel_sys::io::Stream;
use kennel_sys::process::{Identity, ProcessRef};

use crate::key_dir::KeyDir;
use connect::{ConnectAttempt, DaemonConnection};
use driver::ElectionDriver;
pub(crate) use former::FormerKey;
use former::FormerPlace;
use hello::{Answer, PendingReply};

/// Maximum wait of the shim's own thread for a running daemon. The app does not notice it.
const FAST_ATTEMPT_LIMIT: Duration = Duration::from_millis(10);

/// Maximum duration of an election besides two starts of a daemon: it begins again for up to 20 s, then waits up to 17 s for a
/// lock, an earlier daemon and a reply. The rest is margin.
const MAX_RETRIES_AND_WAITS: Duration = Duration::from_secs(60);

/// The daemon that a shim looks for, and what to send it.
#[derive(Debug)]
pub(crate) struct ElectionRequest {
    /// Key of the daemon.
    pub(crate) key: String,
    /// The key of an earlier build, which is tried after `key`.
    pub(crate) former: Arc<FormerKey>,
    /// The first line to send.
    pub(crate) hello: Arc<ClientHello>,
    /// The line after the hello: the app's handshake, if the app has sent it.
    pub(crate) handshake: Option<Vec<u8>>,
    /// The daemon's timers and limits, if it must be started.
    pub(crate) policy: Policy,
    /// Maximum time until it is ready, if it must be started.
    pub(crate) start_timeout: Duration,
    /// A daemon that has not answered this shim for longer than [`stuck::Watch`] allows. It is pinged once more, and killed
    /// if it is stuck.
    pub(crate) suspect: Option<ProcessRef>,
}

impl ElectionRequest {
    /// Changes the request to the key of an earlier build. The handshake is not sent: such a daemon must first show that it
    /// checks keys.
    fn use_former_key(&mut self, place: &FormerPlace) {
        self.key = place.key.clone();
        self.hello = Arc::clone(&place.hello);
        self.handshake = None;
    }

    fn first_message(&self) -> PendingReply {
        PendingReply::hello(&self.hello, self.handshake.as_deref())
    }
}

/// The handshake that was sent together with the hello.
#[derive(Debug)]
pub(crate) struct SentHandshake {
    /// The line, without its newline.
    pub(crate) line: Vec<u8>,
    /// The bytes of it that are not written to the socket yet.
    pub(crate) unsent: Vec<u8>,
}

/// The timers and limits of a daemon, and its owner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) linger: Duration,
    pub(crate) grace: Duration,
    pub(crate) max_idle: Duration,
    pub(crate) owner: Option<Identity>,
    /// Maximum bytes of a line.
    pub(crate) max_line: usize,
}

/// The result of an election.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The shim is a client of the daemon: both have sent their hello.
    Connected {
        /// The bytes after the daemon's hello are not read yet.
        socket: Stream,
        /// The daemon, if its process is visible.
        daemon: Option<ProcessRef>,
        /// The handshake that was sent with the hello.
        greeted: Option<SentHandshake>,
        /// Identifies this daemon among all daemons of the key.
        #[cfg_attr(
            not(test),
            expect(dead_code, reason = "tests distinguish daemons by it")
        )]
        generation: String,
    },
    /// The suspect answers: its clients stay attached.
    NotStuck,
    /// No daemon can be used.
    Solo {
        /// The reason, for people.
        why: String,
    },
}

/// The result of [`elect`].
#[derive(Debug)]
pub(crate) enum Elected {
    /// A running daemon has answered.
    Immediate(Outcome),
    Pending(Pending),
}

/// A running election. Dropping it cancels the election and releases its locks and connections.
#[derive(Debug)]
pub(crate) struct Pending {
    shared: Arc<Shared>,
    /// When the thread counts as hung.
    until: Instant,
}

#[derive(Debug)]
struct Shared {
    decided: Arc<Waker>,
    abandoned: Waker,
    outcome: Mutex<Option<Outcome>>,
}

/// Connects to a running daemon; otherwise starts an election on a separate thread and calls `meanwhile`.
pub(crate) fn elect(wanted: ElectionRequest, meanwhile: impl FnOnce()) -> io::Result<Elected> {
    elect_with_program(wanted, crate::this_build::itself(), meanwhile)
}

/// [`elect`] with `program` as the daemon's program.
fn elect_with_program(
    mut wanted: ElectionRequest,
    program: PathBuf,
    meanwhile: impl FnOnce(),
) -> io::Result<Elected> {
    let former = Arc::clone(&wanted.former);
    if let Some(place) = former.decided() {
        wanted.use_former_key(place);
    }
    let mut found = try_running_daemon(&wanted);
    match found {
        FastAttempt::NoDaemon => {
            if let Some(place) = former.decide(&wanted.hello) {
                wanted.use_former_key(place);
                found = try_running_daemon(&wanted);
            }
        }
        FastAttempt::Connected(_) | FastAttempt::AwaitingReply(..) => former.is_not_used(),
    }
    let begun = match found {
        FastAttempt::Connected(outcome) => return Ok(Elected::Immediate(outcome)),
        FastAttempt::AwaitingReply(reached, asked) => Some((reached, asked)),
        FastAttempt::NoDaemon => None,
    };
    let shared = Arc::new(Shared {
        decided: Arc::new(Waker::new()?),
        abandoned: Waker::new()?,
        outcome: Mutex::new(None),
    });
    let pending = Pending {
        shared: shared.clone(),
        until: Instant::now() + MAX_RETRIES_AND_WAITS + 2 * wanted.start_timeout,
    };
    std::thread::Builder::new()
        .name("election".to_owned())
        .spawn(move || {
            let election = ElectionDriver::new(wanted, begun, program, &shared.abandoned);
            let outcome = catch_unwind(AssertUnwindSafe(|| election.run()));
            // The shim waits for an outcome, so a panic must produce one, too.
            let why = "the election failed; please report it".to_owned();
            let outcome = outcome.unwrap_or(Outcome::Solo { why });
            *shared
                .outcome
                .lock()
                .expect("no thread panics while it holds this lock") = Some(outcome);
            shared.decided.wake();
        })?;
    meanwhile();
    Ok(Elected::Pending(pending))
}

/// The result of [`try_running_daemon`].
enum FastAttempt {
    Connected(Outcome),
    /// A daemon is connected, and has not answered yet.
    AwaitingReply(DaemonConnection, PendingReply),
    NoDaemon,
}

/// Tries to reach a running daemon without a thread: it answers sooner than a thread starts.
fn try_running_daemon(wanted: &ElectionRequest) -> FastAttempt {
    if wanted.suspect.is_some() {
        return FastAttempt::NoDaemon;
    }
    // The hello is built before connecting, so that the daemon gets it as soon as it has identified this process.
    let mut asked = wanted.first_message();
    let Ok(key_dir) = KeyDir::ensure(&wanted.key) else {
        return FastAttempt::NoDaemon;
    };
    let ConnectAttempt::Connected(reached) = connect::try_connect(&key_dir) else {
        return FastAttempt::NoDaemon;
    };
    match asked.answer_within(&reached.socket, FAST_ATTEMPT_LIMIT) {
        Ok(Some(Answer::Reply(DaemonReply::Hello(hello)))) => {
            FastAttempt::Connected(Outcome::Connected {
                socket: reached.socket,
                daemon: reached.daemon,
                greeted: asked.greeted(),
                generation: hello.generation,
            })
        }
        Ok(None) => FastAttempt::AwaitingReply(reached, asked),
        // A daemon that ends, or another process: the election decides.
        Ok(Some(_)) | Err(_) => FastAttempt::NoDaemon,
    }
}

impl Pending {
    /// Takes the outcome: `None` before the election ends, and after the outcome was taken. When it is
    /// [overdue](Self::overdue_at), its thread hangs in a system call, and the session goes dedicated.
    pub(crate) fn take(&self) -> Option<Outcome> {
        let mut outcome = self
            .shared
            .outcome
            .lock()
            .expect("no thread panics while it holds this lock");
        let taken = outcome.take().inspect(|_| self.shared.decided.clear());
        taken.or_else(|| {
            let why = "the election timed out; its thread may hang in a system call".to_owned();
            (Instant::now() >= self.until).then_some(Outcome::Solo { why })
        })
    }

    /// Readable from the end of the election until the outcome is taken.
    pub(crate) fn decided(&self) -> Arc<Waker> {
        Arc::clone(&self.shared.decided)
    }

    /// When the thread counts as hung.
    pub(crate) fn overdue_at(&self) -> Instant {
        self.until
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.abandoned.wake();
    }
}
