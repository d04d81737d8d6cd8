//! How much is measured of each server, and for how long.

use std::time::Duration;

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// Those who stay, the first of whom finds everything cold, and those who come and go.
    pub(super) clients: usize,
    pub(super) visitors: usize,
    /// How often somebody is started from nothing, beside the first of those who stay.
    pub(super) colds: usize,
    pub(super) turns: usize,
    /// How often somebody is killed.
    pub(super) ends: usize,
    /// For what may never happen.
    pub(super) patience: Duration,
    pub(super) idle: Duration,
    /// How long each way may gather its crowd, and how many there are at most.
    pub(super) gathering: Duration,
    pub(super) crowd: usize,
    pub(super) shares: Shares,
}

/// How many seconds all ways together have for each kind of measurement. Each way has its first look even so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    pub(super) attach: u64,
    pub(super) one_calls: u64,
    pub(super) all_call: u64,
    pub(super) gone: u64,
    pub(super) held: u64,
    pub(super) cold: u64,
    pub(super) servers: u64,
    pub(super) brokers: u64,
    pub(super) crowds: u64,
}

pub(super) const FULL: Extent = Extent {
    clients: 10,
    visitors: 6,
    colds: 2,
    turns: 31,
    ends: 5,
    patience: Duration::from_secs(8),
    idle: Duration::from_secs(20),
    gathering: Duration::from_secs(35),
    crowd: 100,
    shares: Shares {
        attach: 70,
        one_calls: 30,
        all_call: 30,
        gone: 30,
        held: 55,
        cold: 30,
        servers: 50,
        brokers: 40,
        crowds: 190,
    },
};
/// Of the servers that are not the first: what they change of the ratios.
pub(super) const SHORT: Extent = Extent {
    clients: 5,
    visitors: 0,
    colds: 0,
    turns: 9,
    ends: 1,
    patience: Duration::from_secs(2),
    idle: Duration::ZERO,
    gathering: Duration::from_secs(8),
    crowd: 10,
    shares: Shares {
        attach: 34,
        one_calls: 6,
        all_call: 8,
        gone: 8,
        held: 16,
        cold: 0,
        servers: 14,
        brokers: 0,
        crowds: 32,
    },
};
pub(super) const QUICK: Extent = Extent {
    clients: 2,
    visitors: 0,
    colds: 0,
    turns: 2,
    ends: 1,
    patience: Duration::from_secs(1),
    idle: Duration::from_secs(2),
    gathering: Duration::from_millis(500),
    crowd: 10,
    shares: Shares {
        attach: 30,
        one_calls: 3,
        all_call: 3,
        gone: 8,
        held: 12,
        cold: 0,
        servers: 8,
        brokers: 14,
        crowds: 14,
    },
};

impl Extent {
    /// How long it takes, more or less.
    pub(super) fn time(&self) -> Duration {
        let shares = &self.shares;
        let calls = shares.attach + shares.one_calls + shares.all_call;
        let ends = shares.gone + shares.held + shares.cold + shares.servers + shares.brokers;
        Duration::from_secs(calls + ends + shares.crowds) + self.idle + self.idle / 4
    }
}

/// How long the whole run has for this, in seconds: of what is planned.
pub(crate) fn seconds(quick: bool) -> u64 {
    let extents: &[Extent] = match quick {
        true => &[QUICK],
        false => &[FULL, SHORT, SHORT],
    };
    extents.iter().map(|extent| extent.time().as_secs()).sum()
}
