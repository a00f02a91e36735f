//! Medians of measured values, and their confidence intervals.

/// A median of measured values, with an interval that contains the true median with a probability of about 95 %.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Median {
    /// The median, in the unit of the measured values.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

/// Returns the median of measured values with its interval. The interval is found by rank: with n values it reaches
/// about 0.98 times the root of n ranks to both sides, and needs no assumption on their distribution.
///
/// # Panics
/// If `values` is empty.
pub fn median(values: &[f64]) -> Median {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let value = if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
    let reach = 0.98 * (n as f64).sqrt();
    let middle = (n as f64 - 1.0) / 2.0;
    let low = (middle - reach).floor().max(0.0) as usize;
    let high = ((middle + reach).ceil() as usize).min(n - 1);
    Median { value, low: sorted[low], high: sorted[high] }
}

/// Returns the median of the ratios of two servers' figures, each ratio from one round.
pub fn ratio(ours: &[f64], theirs: &[f64]) -> Median {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
    median(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_has_interval_of_neighbours() {
        let values: Vec<f64> = (1..=15).map(f64::from).rev().collect();
        let found = median(&values);
        assert_eq!((found.value, found.low, found.high), (8.0, 4.0, 12.0));
        assert_eq!(median(&[3.0, 1.0]).value, 2.0);
        assert_eq!(ratio(&[2.0, 9.0, 4.0], &[1.0, 3.0, 2.0]).value, 2.0);
    }
}
