//! A progress bar for a job of the server. The job continues if this process ends.

use std::fmt::Write;

use block::units::format_duration;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// Returns a progress bar over `all_bytes` bytes, with the action `what` on the device `whose`. Draws nothing if
/// there is no terminal.
pub fn bar(what: &str, whose: &str, all_bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(all_bytes);
    let template = "{msg} {prefix}  [{bar:14}] {percent:>2} %  {binary_bytes_per_sec}  {left} \
                    left   (the job continues after Ctrl-C)";
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    let left = |state: &ProgressState, out: &mut dyn Write| {
        // If the bar cannot be written, there is no terminal to see it.
        let _ = out.write_str(&format_duration(state.eta()));
    };
    bar.set_style(style.progress_chars("=> ").with_key("left", left));
    bar.set_message(what.to_owned());
    bar.set_prefix(whose.to_owned());
    bar
}
