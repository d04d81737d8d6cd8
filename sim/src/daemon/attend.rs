//! Its stations: what follows from what happened there, and what becomes of their servers.

use std::time::Duration;

use kennel_core::hello::{Control, Lost};
use kennel_core::lifetime::ClientId;
use kennel_core::mux::Out;
use kennel_core::session::SERVER_RESTARTED;
use kennel_core::time::Moment;

use super::{Daemon, Place};
use crate::kernel::{Heard, Kernel};
use crate::spare;
use crate::station::{Running, Station};

impl Daemon {
    pub(super) fn station_wake(&self, station: &Station, kernel: &Kernel) -> Option<Moment> {
        let start =
            (station.server.is_none() && self.is_first(station)).then_some(station.start_at);
        let deserted = station.deserted.filter(|_| !station.closing);
        let linger = deserted.map(|since| since + self.linger(station, kernel));
        [start, linger, station.mux.due()]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn linger(&self, station: &Station, kernel: &Kernel) -> Duration {
        match station.class.is_shared()
            && station.mux.ambiguous().is_none()
            && station.server.is_some()
        {
            true => kernel.house.linger,
            false => Duration::ZERO,
        }
    }

    /// Whether nothing is left of those that had its place before it.
    pub(super) fn is_first(&self, station: &Station) -> bool {
        let same = |other: &&Station| other.class == station.class && station.class.is_shared();
        let first = self.stations.iter().find(same);
        first.is_none_or(|first| first.number == station.number)
    }

    pub(super) fn stirs(&self, station: &Station, kernel: &Kernel) -> bool {
        let server = station.server.as_ref().is_some_and(|it| match it.silent {
            false => kernel.readable(it.stdout),
            true => kernel.tree_is_empty(it.pid),
        });
        let ends = station.closing
            && match &station.server {
                None => true,
                Some(server) => !server.stopped,
            };
        server || ends || station.may_feed(kernel)
    }

    pub(super) fn station(&mut self, number: u64) -> Option<&mut Station> {
        self.stations.iter_mut().find(|it| it.number == number)
    }

    /// Does what follows from what happened at a station.
    pub(super) fn settle(&mut self, number: u64, kernel: &mut Kernel) {
        let Some(station) = self.station(number) else {
            return;
        };
        let out = station.settle();
        let empty = station.members.is_empty();
        station.deserted = empty.then(|| station.deserted.unwrap_or(kernel.now));
        for out in out {
            match out {
                Out::ToServer { .. } => {}
                Out::ToClient { client, line } => self.deliver(number, client, &line, kernel),
                Out::ToClients { clients, line } => {
                    for client in clients {
                        self.deliver(number, client, &line, kernel);
                    }
                }
                Out::Dismiss {
                    client,
                    unsent,
                    why,
                } => {
                    if let Some(station) = self.station(number) {
                        station.members.remove(&client);
                    }
                    self.go_solo(client, why, unsent, kernel);
                }
            }
        }
    }

    fn deliver(&mut self, number: u64, client: ClientId, line: &[u8], kernel: &mut Kernel) {
        let Some(to) = self.clients.get(&client) else {
            return;
        };
        kernel.write(to.end.write, line);
        let half_closed = to.half_closed;
        let owes = self
            .station(number)
            .is_some_and(|it| it.mux.waits_for(client) > 0);
        if half_closed && !owes {
            self.left(client, kernel);
        }
    }

    /// One thing at one station.
    pub(super) fn attend(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        let numbers: Vec<u64> = self.stations.iter().map(|it| it.number).collect();
        for nth in 0..numbers.len() {
            let number = numbers[(nth + salt as usize) % numbers.len()];
            if self.attend_to(number, salt, kernel) {
                return true;
            }
        }
        false
    }

    pub(super) fn attend_to(&mut self, number: u64, salt: u64, kernel: &mut Kernel) -> bool {
        let now = kernel.now;
        let Some(place) = self.stations.iter().position(|it| it.number == number) else {
            return false;
        };
        let is_first = self.is_first(&self.stations[place]);
        let linger = self.linger(&self.stations[place], kernel);
        let pid = self.pid;
        let station = &mut self.stations[place];
        if station.mux.due().is_some_and(|due| due <= now) {
            station.mux.tick(now);
            self.settle(number, kernel);
            return true;
        }
        if station.deserted.is_some_and(|since| since + linger <= now) && !station.closing {
            kernel.say(pid, || format!("closes the deserted station {number}"));
            station.closing = true;
            return true;
        }
        let Some(mut server) = station.server else {
            if station.closing {
                self.stations.remove(place);
                return true;
            }
            if !is_first || station.start_at > now {
                return false;
            }
            let slot = station.class.is_shared().then(|| station.class.to_string());
            let (pid, stdin, stdout) = kernel.start_server(self.pid, slot);
            kernel.say(self.pid, || format!("starts {pid} for station {number}"));
            self.stations[place].server = Some(Running {
                pid,
                stdin,
                stdout,
                stopped: false,
                silent: false,
            });
            return true;
        };
        if station.closing && !server.stopped {
            kernel.close_write(server.stdin);
            kernel.stop_tree(server.pid);
            server.stopped = true;
            station.server = Some(server);
            return true;
        }
        let speaks = !server.silent && kernel.readable(server.stdout);
        if station.may_feed(kernel) && (!speaks || salt.is_multiple_of(3)) {
            station.feed(salt / 3, kernel);
            return true;
        }
        if speaks {
            match kernel.read(server.stdout) {
                Heard::Line(line) => {
                    station.mux.from_server(&line[..], now);
                    self.settle(number, kernel);
                }
                Heard::End => {
                    server.silent = true;
                    station.server = Some(server);
                    self.lost(number, kernel);
                }
                Heard::Nothing => return false,
            }
            return true;
        }
        if server.silent && kernel.tree_is_empty(server.pid) {
            self.stations.remove(place);
            return true;
        }
        false
    }

    /// Those who are still its clients begin again with the next server.
    pub(super) fn lost(&mut self, number: u64, kernel: &mut Kernel) {
        let now = kernel.now;
        let Some(station) = self.station(number) else {
            return;
        };
        if station.members.is_empty() {
            station.closing = true;
            return;
        }
        let class = station.class.clone();
        station.mux.server_ended();
        self.losses
            .retain(|_, (limit, _)| !limit.is_forgotten(spare::instant(now)));
        let answered = self
            .station(number)
            .is_some_and(|it| it.mux.latency().is_some());
        let (limit, next_start) = self.losses.entry(class).or_default();
        let final_word = limit.lost(spare::instant(now), answered).is_none();
        *next_start = limit.retry_at().map(spare::moment);
        let retry_after = next_start.filter(|_| final_word);
        let retry_after = retry_after.map(|at| (at - now).as_millis() as u64);
        self.settle(number, kernel);
        let Some(station) = self.station(number) else {
            return;
        };
        let mut unsent = station.unsent();
        station.closing = true;
        let members = std::mem::take(&mut station.members);
        for id in members {
            self.set_place(id, Place::Lost);
            let Some(client) = self.clients.get(&id) else {
                continue;
            };
            if client.half_closed {
                self.left(id, kernel);
                continue;
            }
            let lost = Lost {
                reason: SERVER_RESTARTED.to_owned(),
                detail: String::new(),
                final_word,
                exit: None,
                unsent: unsent.remove(&id).unwrap_or_default(),
                heard: Some(client.heard),
                shortage: false,
                ended: None,
                retry_after,
            };
            self.tell(id, &Control::Lost(lost), kernel);
        }
    }
}
