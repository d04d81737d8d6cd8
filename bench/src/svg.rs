//! Charts as SVG, by hand: lines over a count, and bars. Readable on white and on black.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 76.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 52.0;
/// Beside the lines, for their names.
const RIGHT: f64 = 190.0;
/// Each stands out from white and from black.
const COLOURS: [&str; 8] = [
    "#7f7f7f", "#17a2b8", "#2f7fe0", "#e07b00", "#b455c8", "#3f9d4f", "#d64550", "#a08400",
];
/// What the reader's page has in dark, where the file can know that.
const STYLE: &str = "<style>text{font-family:sans-serif;font-size:12px;fill:#333}\
    .title{font-size:15px;font-weight:bold}.grid{stroke:#999;stroke-opacity:.35}\
    @media(prefers-color-scheme:dark){text{fill:#ddd}}</style>";

/// A line or a bar.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Its place among all that may be shown: its colour, which it has in every chart.
    pub(crate) place: usize,
    /// By place on the axis; infinite is what never happened.
    pub(crate) values: Vec<Option<f64>>,
}

/// Lines over counts, both axes in steps of ten.
pub(crate) fn lines(title: &str, unit: &str, counts: &[f64], series: &[Series]) -> String {
    let values = series.iter().flat_map(|one| one.values.iter().flatten());
    let Some(axis) = Axis::over(values.copied()) else {
        return String::new();
    };
    let span = (counts[counts.len() - 1] / counts[0]).log10().max(1e-9);
    let x = |count: f64| LEFT + (WIDTH - LEFT - RIGHT) * (count / counts[0]).log10() / span;
    let mut svg = begin(title, HEIGHT);
    axis.draw(&mut svg, unit, WIDTH - RIGHT);
    for &count in counts {
        let at = x(count);
        let below = HEIGHT - BOTTOM + 18.0;
        let _ = write!(
            svg,
            "<text x='{at:.0}' y='{below}' text-anchor='middle'>{count}</text>"
        );
    }
    let (middle, below) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0);
    let _ = write!(
        svg,
        "<text x='{middle}' y='{below}' text-anchor='middle'>clients</text>"
    );
    let mut names: Vec<(f64, f64, &Series)> = Vec::new();
    for one in series {
        let points: Vec<(f64, f64)> = counts
            .iter()
            .zip(&one.values)
            .filter_map(|(&count, value)| Some((x(count), axis.y((*value)?))))
            .collect();
        let colour = colour(one.place);
        let path: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = write!(
            svg,
            "<polyline fill='none' stroke='{colour}' stroke-width='2.2' points='{}'/>",
            path.join(" ")
        );
        for (x, y) in &points {
            let _ = write!(
                svg,
                "<circle cx='{x:.1}' cy='{y:.1}' r='3.4' fill='{colour}'/>"
            );
        }
        if let Some(&(x, y)) = points.last() {
            names.push((x, y, one));
        }
    }
    // At their ends, one below the other where they would overlap.
    names.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut lowest = f64::MIN;
    for (end, y, one) in names {
        let at = y.max(lowest + 15.0);
        lowest = at;
        let (from, colour) = (WIDTH - RIGHT + 8.0, colour(one.place));
        let _ = write!(
            svg,
            "<line x1='{:.1}' y1='{y:.1}' x2='{from}' y2='{at:.1}' stroke='{colour}' stroke-dasharray='1 3'/>\
             <text x='{}' y='{:.1}' style='fill:{colour}'>{}</text>",
            end + 5.0,
            from + 3.0,
            at + 4.0,
            escaped(&one.name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// A bar for each, the axis in steps of ten. `never` is as long as there is room, and says so.
pub(crate) fn bars(title: &str, unit: &str, series: &[Series]) -> String {
    let shown: Vec<(&Series, f64)> = series
        .iter()
        .filter_map(|one| Some((one, (*one.values.first()?)?)))
        .collect();
    let (Some(least), Some(most)) = (
        shown.iter().map(|(_, value)| *value).reduce(f64::min),
        shown
            .iter()
            .map(|(_, value)| *value)
            .filter(|value| value.is_finite())
            .reduce(f64::max),
    ) else {
        return String::new();
    };
    let (from, to) = (least.log10().floor(), most.log10().ceil());
    let (left, right, step) = (190.0, 90.0, 30.0);
    let height = TOP + step * shown.len() as f64 + 40.0;
    let room = WIDTH - left - right;
    let length =
        |value: f64| room * ((value.log10() - from) / (to - from).max(1.0)).clamp(0.004, 1.0);
    let mut svg = begin(title, height);
    let mut tens = from;
    while tens <= to {
        let (x, value) = (left + length(10f64.powf(tens)), 10f64.powf(tens));
        let foot = height - 36.0;
        let _ = write!(
            svg,
            "<line class='grid' x1='{x:.1}' y1='{TOP}' x2='{x:.1}' y2='{foot}'/>\
             <text x='{x:.1}' y='{}' text-anchor='middle'>{value}</text>",
            foot + 16.0
        );
        tens += 1.0;
    }
    let (middle, below) = (left + room / 2.0, height - 4.0);
    let _ = write!(
        svg,
        "<text x='{middle}' y='{below}' text-anchor='middle'>{}</text>",
        escaped(unit)
    );
    for (row, (one, value)) in shown.iter().enumerate() {
        let y = TOP + step * row as f64 + 5.0;
        let (length, words) = match value.is_finite() {
            true => (length(*value), crate::summary::rounded(*value)),
            false => (room, "never".to_owned()),
        };
        let (fill, dashes) = match value.is_finite() {
            true => (colour(one.place), ""),
            false => ("none", " stroke-dasharray='4 3'"),
        };
        let _ = write!(
            svg,
            "<rect x='{left}' y='{y:.1}' width='{length:.1}' height='20' fill='{fill}' stroke='{}'{dashes}/>\
             <text x='{}' y='{:.1}' text-anchor='end'>{}</text><text x='{:.1}' y='{:.1}'>{words}</text>",
            colour(one.place),
            left - 8.0,
            y + 14.0,
            escaped(&one.name),
            left + length + 6.0,
            y + 14.0,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// From a power of ten to another.
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone) -> Option<Axis> {
        let least = values.clone().reduce(f64::min)?;
        let most = values.reduce(f64::max)?;
        let (from, to) = (least.log10().floor(), most.log10().ceil());
        Some(Axis {
            from,
            to: to.max(from + 1.0),
        })
    }

    fn y(&self, value: f64) -> f64 {
        let part = (value.log10() - self.from) / (self.to - self.from);
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * part
    }

    fn draw(&self, svg: &mut String, unit: &str, right: f64) {
        let mut tens = self.from;
        while tens <= self.to {
            let value = 10f64.powf(tens);
            let y = self.y(value);
            let _ = write!(
                svg,
                "<line class='grid' x1='{LEFT}' y1='{y:.1}' x2='{right}' y2='{y:.1}'/>\
                 <text x='{}' y='{:.1}' text-anchor='end'>{value}</text>",
                LEFT - 8.0,
                y + 4.0
            );
            tens += 1.0;
        }
        let _ = write!(
            svg,
            "<text x='{}' y='{}' text-anchor='end'>{}</text>",
            LEFT - 8.0,
            TOP - 14.0,
            escaped(unit)
        );
    }
}

fn begin(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'>{STYLE}\
         <text class='title' x='14' y='24'>{}</text>",
        escaped(title)
    )
}

fn colour(place: usize) -> &'static str {
    COLOURS[place % COLOURS.len()]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, values: &[f64]) -> Series {
        Series {
            name: name.to_owned(),
            place: 0,
            values: values.iter().copied().map(Some).collect(),
        }
    }

    #[test]
    fn more_is_higher_and_names_do_not_overlap() {
        let pair = [series("a", &[10.0, 100.0]), series("b & c", &[10.0, 101.0])];
        let svg = lines("t", "MB", &[1.0, 10.0], &pair);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("b &amp; c"));
        let axis = Axis::over([10.0, 101.0].into_iter()).unwrap();
        assert!(axis.y(100.0) < axis.y(10.0));
        let heights: Vec<&str> = svg
            .split("<text x='")
            .filter(|part| part.contains("fill:"))
            .collect();
        assert_eq!(heights.len(), 3, "two names, and the style before them");
    }

    #[test]
    fn what_never_happened_is_a_bar_without_an_end() {
        let svg = bars(
            "t",
            "ms",
            &[series("a", &[12.0]), series("b", &[f64::INFINITY])],
        );
        assert!(svg.contains(">never<") && svg.contains(">12.0<"));
        assert_eq!(bars("t", "ms", &[]), "");
        assert_eq!(lines("t", "ms", &[1.0], &[]), "");
    }
}
