//! With a server of its own.

use kennel_core::session::{SERVER_RESTARTED, Unsent, Verdict};

use super::{Own, Shim};
use crate::kernel::{Heard, Kernel};
use crate::spare;

impl Shim {
    pub(super) fn start_own(&mut self, kernel: &mut Kernel) {
        let (pid, stdin, stdout) = kernel.start_server(self.pid, None);
        kernel.say(self.pid, || format!("starts {pid}, a server of its own"));
        self.own = Some(Own {
            pid,
            stdin,
            stdout,
            lost: false,
        });
        self.upstream_answered = false;
        self.session.upstream_attached();
    }

    pub(super) fn hear_own(&mut self, kernel: &mut Kernel) -> bool {
        let Some(own) = self.own.as_mut().filter(|own| own.stirs(kernel)) else {
            return false;
        };
        let (pid, stdout, lost) = (own.pid, own.stdout, own.lost);
        if lost {
            if kernel.tree_is_empty(pid) {
                self.own = None;
            }
            return true;
        }
        match kernel.read(stdout) {
            Heard::Line(line) => {
                self.answered_once = true;
                self.upstream_answered = true;
                match self.session.from_upstream(&line[..]) {
                    Verdict::Forward => drop(kernel.write(self.stdout, &line)),
                    Verdict::Replace(line) => drop(kernel.write(self.stdout, &line)),
                    Verdict::Drop => {}
                    Verdict::Abandon => self.lose_own(kernel),
                }
            }
            Heard::End => self.lose_own(kernel),
            Heard::Nothing => return false,
        }
        true
    }

    pub(super) fn lose_own(&mut self, kernel: &mut Kernel) {
        let Some(own) = &mut self.own else {
            return;
        };
        own.lost = true;
        kernel.close_write(own.stdin);
        kernel.close_read(own.stdout);
        kernel.stop_tree(own.pid);
        self.session
            .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        if self.session.app_is_done() {
            return self.session.give_up("the server ended", "");
        }
        let lost = self
            .limit
            .lost(spare::instant(kernel.now), self.upstream_answered);
        self.retry_at = self.limit.retry_at().map(spare::moment);
        self.next_start = match lost {
            Some(at) if self.answered_once => Some(spare::moment(at)),
            _ => {
                self.session.give_up("the server ended too often", "");
                None
            }
        };
    }
}
