//! Checks when a daemon ends.

use kennel_core::lifetime::{Liveness, Reason};
use kennel_core::time::Moment;

use super::clients::Client;
use super::{Daemon, Phase};
use crate::kernel::Kernel;

impl Daemon {
    /// Checks rules 2 and 3: the daemon ends in time, and not earlier.
    pub(super) fn check_end(&self, reason: Reason, kernel: &mut Kernel) {
        if reason == Reason::StopRequested {
            return;
        }
        let now = kernel.now;
        let settings = kernel.settings;
        let lives = |it: &&Client| it.hello.is_some() && kernel.alive(it.end.peer);
        let disconnected = self.clients.values().filter(lives).count();
        kernel.check(
            disconnected == 0 || settings.liveness == Liveness::Unwatchable,
            || format!("rule 3: {disconnected} living clients are disconnected: {reason}"),
        );
        // A daemon may end because its clients are silent, so it may still have clients.
        let is_silence = matches!(reason, Reason::Silent { .. });
        if let Some(since) = self.no_clients_since.filter(|_| !is_silence) {
            let unowned = self.owner_gone.map(|at| at.max(since) + settings.grace);
            let due = unowned.map_or(since + settings.linger, |at| {
                at.min(since + settings.linger)
            });
            kernel.check(now >= due, || {
                format!("rule 3: it ends too early: {reason}")
            });
        }
    }

    /// The time by which the daemon must end if no client connects.
    pub(crate) fn due(&self, kernel: &Kernel) -> Option<Moment> {
        let since = self
            .no_clients_since
            .filter(|_| self.phase == Phase::Serving)?;
        let since = since.max(kernel.changed(self.pid));
        let linger = since + kernel.settings.linger;
        let unowned = self
            .owner_gone
            .map(|at| at.max(since) + kernel.settings.grace);
        Some(unowned.map_or(linger, |at| at.min(linger)))
    }
}
