//! Tests of specs: valid specs give plans of graphs, and invalid specs give faults.

mod cases;
mod kinds;
mod plans;
mod random;
