//! A way, its clients, and what was measured of it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::measure::{Column, Measure};
use super::subject::Subject;
use super::way::{Kind, Way};
use crate::caller::{Called, Caller};
use crate::people::People;
use crate::report::{Bound, Row};
use crate::stats::{median, micros, percentile};

/// Calls of one client, and of each of many, before it is the next way's turn; and for how long at most.
const TRIPS: usize = 30;
const CALLS: usize = 20;
const TURN: Duration = Duration::from_millis(400);

pub(super) struct Team<'a> {
    pub(super) kind: Kind,
    pub(super) subject: Subject,
    pub(super) peers: &'a Path,
    /// Open while there are clients.
    pub(super) way: Option<Way>,
    pub(super) clients: Vec<Caller>,
    /// What went wrong, and when: the first of it.
    pub(super) failure: Option<String>,
    series: BTreeMap<Measure, Vec<f64>>,
    /// All calls of one client.
    trips: Vec<Duration>,
    answers: usize,
    astray: usize,
}

impl Team<'_> {
    pub(super) fn new(kind: Kind, subject: Subject, peers: &Path) -> Team<'_> {
        Team {
            kind,
            subject,
            peers,
            way: None,
            clients: Vec::new(),
            failure: None,
            series: BTreeMap::new(),
            trips: Vec::new(),
            answers: 0,
            astray: 0,
        }
    }

    /// Opens the way, unless it is open.
    pub(super) fn open(&mut self) -> io::Result<&Way> {
        let way = match self.way.take() {
            Some(way) => way,
            None => Way::open(self.kind, self.subject, self.peers)?,
        };
        Ok(self.way.insert(way))
    }

    pub(super) fn close(&mut self) {
        // All at once: some take their time to end.
        self.clients
            .iter_mut()
            .for_each(|client| drop(client.take_input()));
        self.clients.clear();
        self.way = None;
    }

    pub(super) fn note(&mut self, measure: Measure, value: f64) {
        self.series.entry(measure).or_default().push(value);
    }

    /// Whether it did not happen, once: then it is not waited for again.
    pub(super) fn was_never(&self, measure: Measure) -> bool {
        let numbers = self.series.get(&measure).into_iter().flatten();
        numbers.copied().any(f64::is_infinite)
    }

    /// Another client; tells how long it took.
    pub(super) fn client(&mut self, number: usize) -> io::Result<(Caller, Duration)> {
        let tool = self.subject.tool();
        let command = self.open()?.command(number)?;
        Caller::attach(command, tool, &format!("client {number}"))
    }

    /// So many more at once, each after its first call.
    pub(super) fn gather(&mut self, more: usize) -> io::Result<()> {
        let (tool, present) = (self.subject.tool(), self.clients.len());
        let way = self.open()?;
        let commands = (present..present + more).map(|number| Ok((number, way.command(number)?)));
        let commands = commands.collect::<io::Result<Vec<_>>>()?;
        let came: io::Result<Vec<Caller>> = std::thread::scope(|threads| {
            let coming: Vec<_> = commands
                .into_iter()
                .map(|(number, command)| {
                    threads.spawn(move || {
                        let name = format!("client {number}");
                        let (mut client, _) = Caller::attach(command, tool, &name)?;
                        client.call().map(|_| client)
                    })
                })
                .collect();
            let came = coming.into_iter();
            came.map(|it| it.join().expect("it does not panic"))
                .collect()
        });
        self.clients.extend(came?);
        Ok(())
    }

    /// From nothing at all to the first answer, and back to nothing.
    pub(super) fn cold(&mut self) -> io::Result<()> {
        self.close();
        let begun = Instant::now();
        let (mut client, _) = self.client(0)?;
        let took = begun.elapsed();
        client.call()?;
        drop(client);
        self.close();
        self.note(Measure::Cold, micros(took) / 1000.0);
        Ok(())
    }

    /// As many as `stay` stay.
    pub(super) fn attach(&mut self, turn: usize, stay: usize) -> io::Result<()> {
        let is_cold = self.way.is_none();
        let begun = Instant::now();
        let (client, took) = self.client(turn)?;
        if is_cold {
            self.note(Measure::Cold, micros(begun.elapsed()) / 1000.0);
        }
        if !is_cold || self.kind.is_alone() {
            self.note(Measure::Attach, micros(took) / 1000.0);
        }
        if self.clients.len() < stay {
            self.clients.push(client);
        }
        Ok(())
    }

    pub(super) fn one_calls(&mut self) -> io::Result<()> {
        let Some(client) = self.clients.first_mut() else {
            return Ok(());
        };
        // It has slept while the others had their turns.
        client.call()?;
        let begun = Instant::now();
        let mut times = Vec::new();
        while times.len() < TRIPS && begun.elapsed() < TURN {
            times.push(client.call()?.took);
        }
        times.sort();
        self.note(Measure::P50, micros(percentile(&times, 50)));
        self.trips.extend(times);
        self.trips.sort();
        let all = micros(percentile(&self.trips, 99));
        self.series.insert(Measure::P99, vec![all]);
        Ok(())
    }

    /// All clients at once.
    pub(super) fn all_call(&mut self, measure: Measure) -> io::Result<()> {
        if self.clients.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let calls: io::Result<Vec<Vec<Called>>> = std::thread::scope(|threads| {
            let calling: Vec<_> = self
                .clients
                .iter_mut()
                .map(|client| threads.spawn(|| calls_of(client)))
                .collect();
            let ended = calling.into_iter();
            ended
                .map(|it| it.join().expect("it does not panic"))
                .collect()
        });
        let seconds = begun.elapsed().as_secs_f64();
        let calls = calls?.concat();
        self.note(measure, calls.len() as f64 / seconds);
        self.answers += calls.len();
        self.astray += calls.iter().filter(|call| call.astray).count();
        Ok(())
    }

    /// Everyone this way needs for the clients it has.
    pub(super) fn people(&self) -> io::Result<People> {
        let way = self.way.as_ref().ok_or(io::ErrorKind::NotFound)?;
        way.people(&self.pids())
    }

    /// The same without the servers themselves.
    pub(super) fn people_but_servers(&self) -> io::Result<People> {
        let way = self.way.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let pids = self.pids();
        Ok(way.people(&pids)?.without(&way.servers(&pids)?))
    }

    fn pids(&self) -> Vec<u32> {
        self.clients.iter().map(Caller::pid).collect()
    }

    pub(super) fn value(&self, measure: Measure) -> Option<f64> {
        let numbers = self.series.get(&measure)?;
        Some(median(numbers.iter().copied()))
    }

    pub(super) fn row(&self, columns: &[Column]) -> Row {
        let name = self.kind.name();
        let (answers, astray) = (self.answers, self.astray);
        Row {
            name: match &self.failure {
                Some(why) => format!("{name} ({why})"),
                None if astray > 0 => format!("{name} ({astray} of {answers} answers astray)"),
                None => name.to_owned(),
            },
            // One that gave up half way keeps what was measured until then.
            numbers: columns
                .iter()
                .map(|column| self.value(column.measure))
                .collect(),
        }
    }

    /// What we need, of what a peer needs, turn by turn. One that does not get so far cannot be ahead.
    pub(super) fn against(&self, peer: &Team<'_>, columns: &[Column]) -> Vec<Bound> {
        let bound = |column: &Column| {
            let ours = self.series.get(&column.measure)?;
            let theirs = peer.series.get(&column.measure)?;
            let ratios =
                ours.iter()
                    .zip(theirs)
                    .map(|(ours, theirs)| match column.more_is_better {
                        true => theirs / ours,
                        false => ours / theirs,
                    });
            Some(Bound {
                what: column.what?.to_owned(),
                value: median(ratios),
                unit: format!("x of {}", peer.kind.name()).leak(),
                at_most: 1.0,
                aim: None,
            })
        };
        columns.iter().filter_map(bound).collect()
    }
}

fn calls_of(client: &mut Caller) -> io::Result<Vec<Called>> {
    let begun = Instant::now();
    let mut calls = Vec::new();
    while calls.len() < CALLS && begun.elapsed() < TURN {
        calls.push(client.call()?);
    }
    Ok(calls)
}
