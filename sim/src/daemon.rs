//! A daemon: a real [`Lifetime`], and a real `Mux` for each of its servers, with the order of things that
//! `kennel daemon` has.

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_core::hello::{ClientHello, Control, DaemonHello, Lost, PROTOCOL, Solo};
use kennel_core::lifetime::{self, Lifetime, Owner, Reason, Sight};
use kennel_core::message::{Key, Message, error_reply, result_reply};
use kennel_core::mux::{Class, ClientId, Era, Opening, Out, Policy, opening};
use kennel_core::session::SERVER_RESTARTED;
use kennel_core::time::Moment;

use crate::budget::Budget;
use crate::kernel::{End, Heard, Kernel, Pid, PipeId, Record};
use crate::spare;
use crate::station::{Running, Station};

const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(crate) struct Daemon {
    pid: Pid,
    phase: Phase,
    generation: u32,
    first: Option<End>,
    report: PipeId,
    alarm: Moment,
    lifetime: Lifetime,
    stop_asked: bool,
    /// Its end is decided, and those who were here are shown out.
    ending: bool,
    look_again: Option<Moment>,
    clients: BTreeMap<ClientId, Client>,
    stations: Vec<Station>,
    losses: BTreeMap<Class, (Budget, Option<Moment>)>,
    next: u64,
    /// Since when nobody is here, counted apart from its own books.
    pub(crate) nobody_since: Option<Moment>,
    owner_gone: Option<Moment>,
}

/// How far it has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Begun,
    /// It has `daemon.lock`; what an earlier one left is to end first.
    Locked,
    /// It listens, and is on record.
    Listening,
    Serving,
}

struct Client {
    end: End,
    hello: Option<ClientHello>,
    place: Place,
    heard: u64,
    half_closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Opening,
    At(u64),
    Lost,
}

impl Daemon {
    pub(crate) fn new(
        pid: Pid,
        first: End,
        report: PipeId,
        alarm: Duration,
        kernel: &Kernel,
    ) -> Daemon {
        Daemon {
            pid,
            phase: Phase::Begun,
            generation: 0,
            first: Some(first),
            report,
            alarm: kernel.now + alarm,
            lifetime: life(kernel),
            stop_asked: false,
            ending: false,
            look_again: None,
            clients: BTreeMap::new(),
            stations: Vec::new(),
            losses: BTreeMap::new(),
            next: 0,
            nobody_since: Some(kernel.now),
            owner_gone: None,
        }
    }

    pub(crate) fn serves(&self) -> bool {
        self.phase == Phase::Serving
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        match self.phase {
            Phase::Begun | Phase::Listening => true,
            Phase::Locked => !kernel.orphaned_trees() || self.alarm <= kernel.now,
            Phase::Serving => {
                kernel.somebody_waits_at(self.generation)
                    || self.clients.values().any(|it| it.stirs(kernel))
                    || self.stations.iter().any(|it| self.stirs(it, kernel))
                    || self.owner_stirs(kernel)
                    || self.may_part(kernel)
                    || self.wake(kernel).is_some_and(|at| at <= kernel.now)
            }
        }
    }

    /// Its end is decided, and there is something to do about it.
    fn may_part(&self, kernel: &Kernel) -> bool {
        let empty = self.clients.is_empty() && self.stations.is_empty();
        let may_try = empty && self.look_again.is_none_or(|at| at <= kernel.now);
        self.lifetime.verdict().is_some() && (!self.ending || may_try)
    }

    pub(crate) fn wake(&self, kernel: &Kernel) -> Option<Moment> {
        if self.phase != Phase::Serving {
            return Some(self.alarm);
        }
        let stations = self
            .stations
            .iter()
            .filter_map(|it| self.station_wake(it, kernel));
        let life = match self.lifetime.verdict() {
            Some(_) => self.look_again,
            None => self.lifetime.deadline(),
        };
        stations.chain(life).min()
    }

    fn station_wake(&self, station: &Station, kernel: &Kernel) -> Option<Moment> {
        let start =
            (station.server.is_none() && self.is_first(station)).then_some(station.start_at);
        let deserted = station.deserted.filter(|_| !station.closing);
        let linger = deserted.map(|since| since + self.linger(station, kernel));
        [start, linger, station.mux.due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn linger(&self, station: &Station, kernel: &Kernel) -> Duration {
        match station.class.is_shared()
            && station.mux.ambiguous().is_none()
            && station.server.is_some()
        {
            true => kernel.house.linger,
            false => Duration::ZERO,
        }
    }

    /// Whether nothing is left of those that had its place before it.
    fn is_first(&self, station: &Station) -> bool {
        let same = |other: &&Station| other.class == station.class && station.class.is_shared();
        let first = self.stations.iter().find(same);
        first.is_none_or(|first| first.number == station.number)
    }

    fn stirs(&self, station: &Station, kernel: &Kernel) -> bool {
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

    fn owner_stirs(&self, kernel: &Kernel) -> bool {
        let owner = kernel.house.owner;
        self.owner_gone.is_none() && owner.is_some_and(|owner| !kernel.alive(owner))
    }

    /// One of the things there are to do; `false` once it is over.
    pub(crate) fn turn(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        if self.phase != Phase::Serving {
            return self.start(kernel);
        }
        let ways: [fn(&mut Daemon, u64, &mut Kernel) -> bool; 4] = [
            Daemon::let_in,
            Daemon::hear_clients,
            Daemon::attend,
            Daemon::look_at_owner,
        ];
        for nth in 0..ways.len() {
            if ways[(nth + salt as usize) % ways.len()](self, salt, kernel) {
                break;
            }
        }
        self.live(kernel)
    }

    fn start(&mut self, kernel: &mut Kernel) -> bool {
        if self.alarm <= kernel.now {
            kernel.say(self.pid, || "is not ready in time".to_owned());
            return false;
        }
        self.phase = match self.phase {
            Phase::Begun => {
                let free = kernel.try_daemon_lock(self.pid);
                let holder = kernel.daemon_lock().map(|pid| kernel.name(pid));
                kernel.must(free, || {
                    format!("rule 1: a daemon is started beside {holder:?}")
                });
                if !free {
                    kernel.write(self.report, b"failed it is locked");
                    return false;
                }
                Phase::Locked
            }
            Phase::Locked => {
                self.generation = kernel.listen(self.pid);
                kernel.record = Some(Record {
                    pid: self.pid,
                    generation: self.generation,
                });
                Phase::Listening
            }
            Phase::Listening | Phase::Serving => {
                self.lifetime = life(kernel);
                self.nobody_since = Some(kernel.now);
                if let Some(first) = self.first.take() {
                    self.admit(first, kernel);
                }
                kernel.unlock_spawn(self.pid);
                kernel.write(self.report, b"ready");
                kernel.close_write(self.report);
                Phase::Serving
            }
        };
        let phase = match self.phase {
            Phase::Begun => "begins",
            Phase::Locked => "has daemon.lock",
            Phase::Listening => "listens",
            Phase::Serving => "is ready",
        };
        kernel.say(self.pid, || phase.to_owned());
        true
    }

    /// Somebody asks for the end.
    pub(crate) fn stop(&mut self, kernel: &mut Kernel) {
        if self.phase == Phase::Serving {
            self.stop_asked = true;
            self.lifetime.stop_asked(kernel.now);
            let told: Vec<ClientId> = self.clients.keys().copied().collect();
            for id in told {
                self.tell(id, &Control::Stopped, kernel);
            }
        }
    }

    /// Another program takes its place, with all that it has.
    pub(crate) fn upgrade(&mut self, kernel: &mut Kernel) {
        for station in &mut self.stations {
            if let Err(why) = station.is_carried_over() {
                kernel.must(false, || format!("a mux cannot be carried over: {why}"));
            }
        }
    }

    fn let_in(&mut self, _: u64, kernel: &mut Kernel) -> bool {
        let Some(end) = kernel.accept(self.generation) else {
            return false;
        };
        self.admit(end, kernel);
        true
    }

    fn admit(&mut self, end: End, kernel: &mut Kernel) {
        self.next += 1;
        let id = ClientId(self.next);
        let client = Client {
            end,
            hello: None,
            place: Place::Opening,
            heard: 0,
            half_closed: false,
        };
        self.clients.insert(id, client);
        self.nobody_since = None;
        if self.lifetime.verdict().is_some() && !self.stop_asked {
            self.lifetime = life(kernel);
            if self.owner_gone.is_some() {
                self.lifetime.owner_gone(kernel.now);
            }
        }
        self.lifetime
            .client_attached(id, kernel.house.sight, kernel.now);
    }

    fn left(&mut self, id: ClientId, kernel: &mut Kernel) {
        self.leave_server(id, kernel);
        if let Some(client) = self.clients.remove(&id) {
            kernel.hang_up(client.end);
            kernel.say(self.pid, || format!("client {} left", id.0));
        }
        if self.clients.is_empty() {
            self.nobody_since = self.nobody_since.or(Some(kernel.now));
        }
        self.lifetime.client_gone(id, kernel.now);
    }

    fn leave_server(&mut self, id: ClientId, kernel: &mut Kernel) {
        let place = self.clients.get(&id).map(|client| client.place);
        if let Some(Place::At(number)) = place {
            self.set_place(id, Place::Opening);
            let now = kernel.now;
            if let Some(station) = self.station(number) {
                station.members.remove(&id);
                station.mux.leave(id, now);
            }
            self.settle(number, kernel);
        }
    }

    fn set_place(&mut self, id: ClientId, place: Place) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.place = place;
        }
    }

    fn station(&mut self, number: u64) -> Option<&mut Station> {
        self.stations.iter_mut().find(|it| it.number == number)
    }

    fn tell(&mut self, id: ClientId, word: &Control, kernel: &mut Kernel) {
        if let Some(client) = self.clients.get(&id)
            && client.hello.is_some()
        {
            kernel.write(client.end.write, &word.line());
        }
    }

    fn hear_clients(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        let stirring: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| client.stirs(kernel))
            .map(|(id, _)| *id)
            .collect();
        if stirring.is_empty() {
            return false;
        }
        let id = stirring[salt as usize / 7 % stirring.len()];
        let end = self.clients[&id].end;
        if !kernel.alive(end.peer) {
            self.left(id, kernel);
            return true;
        }
        match kernel.read(end.read) {
            Heard::Nothing => return false,
            Heard::End if self.clients[&id].half_closed || kernel.is_deaf(end.write) => {
                self.left(id, kernel);
            }
            Heard::End => self.half_close(id, kernel),
            Heard::Line(line) => {
                self.lifetime.traffic(id, kernel.now);
                match self.clients[&id].hello.is_some() {
                    true => self.take(id, &line, kernel),
                    false => self.welcome(id, &line, kernel),
                }
            }
        }
        true
    }

    fn welcome(&mut self, id: ClientId, line: &[u8], kernel: &mut Kernel) {
        let end = self.clients[&id].end;
        if Control::parse(line) == Some(Control::Ping) {
            kernel.write(end.write, &Control::Pong.line());
            return self.left(id, kernel);
        }
        let Some(Ok(hello)) = ClientHello::parse(line) else {
            return self.left(id, kernel);
        };
        let answer = DaemonHello {
            version: "0".to_owned(),
            protocol: PROTOCOL,
            generation: self.generation.to_string(),
            build: String::new(),
        };
        kernel.write(end.write, &answer.line());
        // A session that attaches again has given its former connection up.
        let same = |client: &Client| {
            client
                .hello
                .as_ref()
                .is_some_and(|it| it.session == hello.session)
        };
        let older: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| same(client))
            .map(|(id, _)| *id)
            .collect();
        for older in older {
            self.left(older, kernel);
        }
        let pid = hello.pid;
        kernel.say(self.pid, || format!("greets {pid} as client {}", id.0));
        if let Some(client) = self.clients.get_mut(&id) {
            client.hello = Some(hello);
        }
    }

    fn take(&mut self, id: ClientId, line: &[u8], kernel: &mut Kernel) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        match Control::parse(line) {
            Some(Control::Ping) => return self.tell(id, &Control::Pong, kernel),
            Some(Control::Again) => {
                if client.place == Place::Lost {
                    client.place = Place::Opening;
                    client.heard = 0;
                }
                return;
            }
            Some(_) => return,
            None => {}
        }
        if client.place != Place::Lost {
            client.heard += line.len() as u64 + 1;
        }
        let end = client.end;
        if let Place::At(number) = client.place {
            let now = kernel.now;
            let Some(station) = self.station(number) else {
                return;
            };
            let begins = Message::parse(line).map(|message| opening(&message));
            let opens_again =
                station.class.era() == Era::Modern && matches!(begins, Ok(Opening::Legacy(_)));
            if !opens_again {
                station.mux.from_client(id, line, now);
                return self.settle(number, kernel);
            }
            for id in station.mux.in_flight_of(id) {
                kernel.write(
                    end.write,
                    &error_reply(&id, -32601, "Method not found", None),
                );
            }
            self.leave_server(id, kernel);
        }
        let opens = self
            .clients
            .get(&id)
            .is_some_and(|it| it.place == Place::Opening);
        if opens && let Ok(message) = Message::parse(line) {
            self.open(id, &message, line, kernel);
        }
    }

    /// The first line of a session.
    fn open(&mut self, id: ClientId, message: &Message<'_>, line: &[u8], kernel: &mut Kernel) {
        let raw = match message {
            Message::Request(request) => request.id.raw(),
            Message::Batch(_) | Message::Notification(_) | Message::Response(_) => return,
        };
        let class = match opening(message) {
            Opening::Ping => {
                let end = self.clients[&id].end;
                kernel.write(end.write, &result_reply(raw, "{}"));
                return;
            }
            Opening::Legacy(class) | Opening::Modern(class) => class,
            Opening::Probe => Class::modern(),
            Opening::Unclear => Class::private(),
        };
        match self.place(&class, kernel) {
            Ok(number) => {
                self.set_place(id, Place::At(number));
                let session = self.clients[&id]
                    .hello
                    .as_ref()
                    .map(|it| it.session.clone());
                let now = kernel.now;
                if let Some(station) = self.station(number) {
                    station.members.insert(id);
                    station.mux.join(id, &session.unwrap_or_default());
                    station.mux.from_client(id, line, now);
                }
                self.settle(number, kernel);
            }
            Err(why) => self.go_solo(id, why, message.requests(), kernel),
        }
    }

    fn place(&mut self, class: &Class, kernel: &Kernel) -> Result<u64, &'static str> {
        let open = |it: &&Station| it.class == *class && !it.closing && class.is_shared();
        if let Some(station) = self.stations.iter().find(open) {
            return match station.mux.ambiguous() {
                Some(why) => Err(why),
                None => Ok(station.number),
            };
        }
        self.next += 1;
        let next_start = self
            .losses
            .get(class)
            .and_then(|(_, next_start)| *next_start);
        let policy = Policy {
            cache: true,
            in_turn: kernel.house.in_turn,
        };
        let start_at = next_start.unwrap_or(kernel.now);
        self.stations
            .push(Station::new(self.next, class.clone(), policy, start_at));
        Ok(self.next)
    }

    fn go_solo(&mut self, id: ClientId, why: &str, unsent: Vec<Key>, kernel: &mut Kernel) {
        self.set_place(id, Place::Lost);
        let heard = self.clients.get(&id).map(|client| client.heard);
        let solo = Solo {
            why: why.to_owned(),
            unsent,
            heard,
        };
        self.tell(id, &Control::Solo(solo), kernel);
        self.left(id, kernel);
    }

    fn half_close(&mut self, id: ClientId, kernel: &mut Kernel) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.half_closed = true;
        let mut owes = false;
        if let Place::At(number) = client.place {
            let now = kernel.now;
            if let Some(station) = self.station(number) {
                station.mux.client_eof(id, now);
                owes = station.mux.waits_for(id) > 0;
            }
            self.settle(number, kernel);
        }
        if !owes {
            self.left(id, kernel);
        }
    }

    /// Does what follows from what happened at a station.
    fn settle(&mut self, number: u64, kernel: &mut Kernel) {
        let Some(station) = self.station(number) else {
            return;
        };
        let out = station.settle();
        let empty = station.members.is_empty();
        station.deserted = empty.then(|| station.deserted.unwrap_or(kernel.now));
        for out in out {
            match out {
                Out::ToServer { .. } => {}
                Out::ToClient { client, line } => {
                    let Some(to) = self.clients.get(&client) else {
                        continue;
                    };
                    kernel.write(to.end.write, &line);
                    let half_closed = to.half_closed;
                    let owes = self
                        .station(number)
                        .is_some_and(|it| it.mux.waits_for(client) > 0);
                    if half_closed && !owes {
                        self.left(client, kernel);
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

    /// One thing at one station.
    fn attend(&mut self, salt: u64, kernel: &mut Kernel) -> bool {
        let numbers: Vec<u64> = self.stations.iter().map(|it| it.number).collect();
        for nth in 0..numbers.len() {
            let number = numbers[(nth + salt as usize) % numbers.len()];
            if self.attend_to(number, salt, kernel) {
                return true;
            }
        }
        false
    }

    fn attend_to(&mut self, number: u64, salt: u64, kernel: &mut Kernel) -> bool {
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
    fn lost(&mut self, number: u64, kernel: &mut Kernel) {
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
            .retain(|_, (budget, _)| !budget.is_forgotten(spare::instant(now)));
        let (budget, next_start) = self.losses.entry(class).or_default();
        *next_start = budget.spend(spare::instant(now)).map(spare::moment);
        let final_word = next_start.is_none();
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
            };
            self.tell(id, &Control::Lost(lost), kernel);
        }
    }

    fn look_at_owner(&mut self, _: u64, kernel: &mut Kernel) -> bool {
        let stirs = self.owner_stirs(kernel);
        if stirs {
            self.owner_gone = Some(kernel.now);
            self.lifetime.owner_gone(kernel.now);
        }
        stirs
    }

    /// Whether it goes on.
    fn live(&mut self, kernel: &mut Kernel) -> bool {
        let now = kernel.now;
        self.lifetime.tick(now);
        let Some(verdict) = self.lifetime.verdict() else {
            self.ending = false;
            self.look_again = None;
            return true;
        };
        if !self.ending {
            self.ending = true;
            kernel.say(self.pid, || format!("ends: {}", verdict.reason));
            self.judge(verdict.reason, kernel);
            let all: Vec<ClientId> = self.clients.keys().copied().collect();
            for id in all {
                self.left(id, kernel);
            }
            for station in &mut self.stations {
                station.closing = true;
            }
        }
        if !self.clients.is_empty() || !self.stations.is_empty() {
            self.look_again = None;
            return true;
        }
        if !self.stop_asked && self.look_again.is_some_and(|at| at > now) {
            return true;
        }
        if !self.stop_asked && !kernel.try_spawn_lock(self.pid) {
            self.look_again = Some(now + LOOK_AGAIN);
            return true;
        }
        if !self.stop_asked && kernel.somebody_waits_at(self.generation) {
            while let Some(end) = kernel.accept(self.generation) {
                self.admit(end, kernel);
            }
            kernel.unlock_spawn(self.pid);
            return true;
        }
        for late in kernel.shut(self.generation) {
            kernel.write(late.write, &Control::Going.line());
            kernel.hang_up(late);
        }
        if kernel.record.is_some_and(|record| record.pid == self.pid) {
            kernel.record = None;
        }
        kernel.unlock_daemon(self.pid);
        kernel.unlock_spawn(self.pid);
        kernel.say(self.pid, || "is gone".to_owned());
        false
    }

    /// Rules 2 and 3: it ends when it is to end, and not before.
    fn judge(&self, reason: Reason, kernel: &mut Kernel) {
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
        if let Some(since) = self.nobody_since {
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

impl Client {
    fn stirs(&self, kernel: &Kernel) -> bool {
        let hung_up = self.half_closed && kernel.is_deaf(self.end.write);
        let speaks = !self.half_closed && kernel.readable(self.end.read);
        !kernel.alive(self.end.peer) || hung_up || speaks
    }
}

fn life(kernel: &Kernel) -> Lifetime {
    let policy = lifetime::Policy {
        linger: Some(kernel.house.linger),
        grace: kernel.house.grace,
        max_idle: Some(lifetime::MAX_IDLE),
    };
    let owner = match kernel.house.owner {
        Some(_) => Owner::Watched,
        None => Owner::None,
    };
    Lifetime::new(policy, owner, kernel.now)
}
