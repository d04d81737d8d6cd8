//! What must be true of its end.

use kennel_core::lifetime::{Reason, Sight};
use kennel_core::time::Moment;

use super::clients::Client;
use super::{Daemon, Phase};
use crate::kernel::Kernel;

impl Daemon {
    /// Rules 2 and 3: it ends when it is to end, and not before.
    pub(super) fn judge_end(&self, reason: Reason, kernel: &mut Kernel) {
        if reason == Reason::StopAsked {
            return;
        }
        let now = kernel.now;
        let house = kernel.house;
        let lives = |it: &&Client| it.hello.is_some() && kernel.alive(it.end.peer);
        let cut = self.clients.values().filter(lives).count();
        kernel.must(cut == 0 || house.sight == Sight::Unseen, || {
            format!("rule 3: {cut} clients that live are cut: {reason}")
        });
        // Of silence it ends with clients, though they may be told to leave at the same moment.
        let is_silence = matches!(reason, Reason::Silent { .. });
        if let Some(since) = self.nobody_since.filter(|_| !is_silence) {
            let unowned = self.owner_gone.map(|at| at.max(since) + house.grace);
            let due = unowned.map_or(since + house.linger, |at| at.min(since + house.linger));
            kernel.must(now >= due, || {
                format!("rule 3: it ends too early: {reason}")
            });
        }
    }

    /// When it must be gone, if nobody comes.
    pub(crate) fn due(&self, kernel: &Kernel) -> Option<Moment> {
        let since = self.nobody_since.filter(|_| self.phase == Phase::Serving)?;
        let since = since.max(kernel.changed(self.pid));
        let linger = since + kernel.house.linger;
        let unowned = self.owner_gone.map(|at| at.max(since) + kernel.house.grace);
        Some(unowned.map_or(linger, |at| at.min(linger)))
    }
}
