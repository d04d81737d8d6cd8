//! Memory of long lines, for the next one.

use std::cell::Cell;

use kennel_core::message::Owned;

use super::tasks::{self, moments};
use crate::shim::lines;
use crate::shim::spare;

thread_local! {
    /// Somebody waits for the moment to let it go.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// A line that was written, and is of no more use to anybody.
pub(super) fn give_back(line: Option<Owned>) {
    let Some(line) = line else {
        return;
    };
    lines::give_back(line.into_room());
    if spare::due().is_some() && !IS_WATCHED.replace(true) {
        tasks::spawn(async {
            while let Some(due) = spare::due() {
                moments::until(Some(due)).await;
                spare::let_go_if_due();
            }
            IS_WATCHED.set(false);
        });
    }
}
