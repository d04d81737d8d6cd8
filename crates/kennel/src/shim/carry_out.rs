//! Carries out the engine's actions.

use std::io;
use std::time::Duration;

use kennel_core::engine::shim::{Action, Event, Listing, Purpose};
use kennel_sys::tree;

use super::end::writer_is_gone;
use super::server::Server;
use super::{Shim, few_descriptors, record_ancestors};
use crate::election::{self, Elected, Outcome};
use crate::stopped::StoppedProcess;

/// Time between SIGTERM and SIGKILL for a tree that lost its warden and its served process.
const LEFTOVER_TERM: Duration = Duration::from_secs(1);

impl Shim {
    /// Carries out all pending actions, and those that follow from them.
    pub(super) fn carry_out(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::StartServer => self.start_server(),
                Action::DeclareServerLost => {
                    self.read_rest_of_server();
                    self.lose_server();
                }
                Action::StopServer => {
                    if let Some(server) = &mut self.server {
                        server.stdin = None;
                        let _ = server.tree.stop();
                    }
                }
                Action::Elect(purpose) => self.elect(purpose),
                Action::AbandonElection => {
                    self.election = None;
                    self.new_conn = None;
                }
                Action::UseConnection => {
                    self.conn_count += 1;
                    self.conn = self.new_conn.take();
                }
                Action::DropConnection => self.new_conn = None,
                Action::Disconnect => {
                    self.conn_count += 1;
                    self.conn = None;
                }
                Action::Send(control) => {
                    if let Some(conn) = &mut self.conn {
                        conn.to.push_control_line(&control.line());
                    }
                }
                Action::TakePipes => {
                    if let Some(conn) = &mut self.conn {
                        conn.take_pipes(&self.reactor);
                    }
                }
                Action::CheckDaemon => {
                    let work = self.conn.as_ref().and_then(|conn| conn.daemon_work());
                    self.engine.handle(Event::DaemonChecked(work), self.now);
                }
                Action::CheckStopped => {
                    let pid = self.stopped().map(|stopped| stopped.pid);
                    self.engine.handle(Event::StoppedChecked { pid }, self.now);
                }
                Action::ReportStopped => {
                    if let Some(stopped) = self.stopped() {
                        crate::warn(&stopped.report());
                    }
                }
                Action::CheckInput => {
                    let closed = writer_is_gone(&self.stdin);
                    self.engine.handle(Event::InputChecked { closed }, self.now);
                }
                Action::Warn(message) => crate::warn(&message),
                Action::PassStderr(line) => self.to_stderr.push(line.as_bytes()),
                Action::List(Listing::Hibernating) => self.list_hibernating(),
                Action::List(Listing::Nothing) => self.listed = None,
                Action::List(Listing::Restarted) => self.record_restart(),
                Action::TimerCancelled => self.reactor.cancel_alarm(),
            }
        }
    }

    /// A stopped process of the dedicated server. Processes that cannot be read are not reported.
    fn stopped(&self) -> Option<StoppedProcess> {
        let server = self.server.as_ref()?;
        let stopped = server.tree.stopped().unwrap_or_default();
        stopped.map(StoppedProcess::from)
    }

    fn start_server(&mut self) {
        record_ancestors(&mut self.starter);
        let event = match self.try_to_start_server() {
            Ok(server) => {
                self.server = Some(server);
                Event::ServerStarted
            }
            Err(error) => Event::ServerNotStarted {
                why: format!("{error}{}", few_descriptors::advice(&error)),
            },
        };
        self.engine.handle(event, self.now);
    }

    fn try_to_start_server(&self) -> io::Result<Server> {
        if !self.started_once {
            self.prepare_for_a_tree()?;
        }
        let records = self.records.get().map(|records| &records.trees);
        let start = || Server::start(&self.spec, records, &self.reactor);
        few_descriptors::retry_with_higher_limit(start)
    }

    /// Becomes a subreaper only before the first server starts: a daemon that an election starts must not become our child.
    fn prepare_for_a_tree(&self) -> io::Result<()> {
        if let Some(records) = self.records.get() {
            // There are leftovers only if an earlier session was killed together with its warden.
            let _ = tree::end_leftovers(records.trees.handle(), LEFTOVER_TERM);
        }
        tree::become_subreaper()
    }

    fn elect(&mut self, purpose: Purpose) {
        let Some(sharing) = &self.sharing else {
            return;
        };
        let suspect = match purpose {
            Purpose::CheckSuspect => self.conn.as_mut().and_then(|conn| conn.daemon.take()),
            Purpose::Attach | Purpose::Return => None,
        };
        let mut wanted = sharing.wanted(suspect);
        if purpose != Purpose::Return {
            wanted.handshake = self
                .engine
                .session()
                .handshake_request()
                .map(<[u8]>::to_vec);
        }
        // Runs while a thread elects: the process that started us may exit soon. If a daemon answers at once, the app is
        // answered first.
        let starter = &mut self.starter;
        match election::elect(wanted, || record_ancestors(starter)) {
            Ok(Elected::Immediate(outcome)) => self.handle_outcome(outcome),
            Ok(Elected::Pending(pending)) => self.await_election(pending),
            Err(error) => self.handle_outcome(Outcome::Solo {
                why: format!("cannot start the election thread: {error}"),
            }),
        }
    }
}
