//! What a benchmark says: a table, and whether each of its bounds holds.

use serde_json::{Map, Value, json};

use crate::{Options, Outcome};

/// What was measured, ready to be printed.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) benchmark: &'static str,
    /// For a person who did not write it: what is compared, and how.
    pub(crate) about: String,
    /// What the numbers in each row are, unit last, as in `p50_us`.
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
    pub(crate) bounds: Vec<Bound>,
}

/// One way to do it, and its numbers.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// `None` where there is nothing to measure; infinite, what never happens.
    pub(crate) numbers: Vec<Option<f64>>,
}

/// A number that must not be larger.
#[derive(Debug)]
pub(crate) struct Bound {
    /// What the number is, as the subject of a sentence.
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) at_most: f64,
    /// What it should be, where that is less.
    pub(crate) aim: Option<f64>,
}

impl Bound {
    fn holds(&self) -> bool {
        self.value <= self.at_most
    }

    fn line(&self) -> String {
        let outcome = match self.holds() {
            true => Outcome::Pass,
            false => Outcome::Fail,
        };
        let aim = match self.aim {
            Some(aim) => format!("; the aim is {aim}{}", self.unit),
            None => String::new(),
        };
        format!(
            "{}: {} {:.2}{} (at most {}{}{aim})",
            outcome.word(),
            self.what,
            self.value,
            self.unit,
            self.at_most,
            self.unit,
        )
    }
}

impl Report {
    /// Prints it as the person wants it, and tells whether every bound holds.
    pub(crate) fn print(&self, options: &Options) -> Outcome {
        options.tell(self.as_json(), || self.print_table());
        match self.bounds.iter().all(Bound::holds) {
            true => Outcome::Pass,
            false => Outcome::Fail,
        }
    }

    fn print_table(&self) {
        println!("{}: {}\n", self.benchmark, self.about);
        let widest = self.rows.iter().map(|row| row.name.len()).max();
        let names = widest.unwrap_or(0) + 2;
        let heads = self.columns.iter().map(|head| head.replace('_', " "));
        let heads: String = heads.map(|head| format!("{head:>13}")).collect();
        println!("{:names$}{heads}", "");
        for row in &self.rows {
            let cell = |number: &Option<f64>| match number {
                Some(f64::INFINITY) => format!("{:>13}", "never"),
                Some(number) => format!("{number:>13.2}"),
                None => format!("{:>13}", "-"),
            };
            let cells: String = row.numbers.iter().map(cell).collect();
            println!("{:names$}{cells}", row.name);
        }
        println!();
        for bound in &self.bounds {
            println!("{}", bound.line());
        }
        println!();
    }

    fn as_json(&self) -> Value {
        let row = |row: &Row| {
            let mut object = Map::new();
            object.insert("name".to_owned(), json!(row.name));
            for (column, number) in self.columns.iter().zip(&row.numbers) {
                let number = match number {
                    Some(f64::INFINITY) => json!("never"),
                    number => json!(number),
                };
                object.insert((*column).to_owned(), number);
            }
            Value::Object(object)
        };
        let bound = |bound: &Bound| {
            json!({
                "what": bound.what,
                "value": bound.value,
                "unit": bound.unit.trim(),
                "at_most": bound.at_most,
                "aim": bound.aim,
                "pass": bound.holds(),
            })
        };
        json!({
            "benchmark": self.benchmark,
            "about": self.about,
            "columns": self.columns,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "bounds": self.bounds.iter().map(bound).collect::<Vec<_>>(),
            "pass": self.bounds.iter().all(Bound::holds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(value: f64) -> Report {
        Report {
            benchmark: "trial",
            about: String::new(),
            columns: vec!["p50_us"],
            rows: vec![Row {
                name: "direct".to_owned(),
                numbers: vec![Some(3.0)],
            }],
            bounds: vec![
                Bound {
                    what: "one".to_owned(),
                    value: 1.0,
                    unit: "x",
                    at_most: 1.25,
                    aim: None,
                },
                Bound {
                    what: "two".to_owned(),
                    value,
                    unit: " ms",
                    at_most: 4.0,
                    aim: Some(2.0),
                },
            ],
        }
    }

    #[test]
    fn one_bound_that_does_not_hold_fails_the_whole() {
        let options = Options::parse(&["--json"]).unwrap();
        assert_eq!(report(4.0).print(&options), Outcome::Pass);
        assert_eq!(report(4.01).print(&options), Outcome::Fail);
        assert_eq!(report(4.01).as_json()["pass"], false);
        assert_eq!(report(4.01).as_json()["rows"][0]["p50_us"], 3.0);
        let line = "FAIL: two 5.00 ms (at most 4 ms; the aim is 2 ms)";
        assert_eq!(report(5.0).bounds[1].line(), line);
    }

    #[test]
    fn a_number_that_is_none_holds_no_bound() {
        let options = Options::parse(&["--json"]).unwrap();
        assert_eq!(report(f64::NAN).print(&options), Outcome::Fail);
    }
}
