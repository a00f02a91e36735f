//! A bar for what takes long and goes on without us.

use std::fmt::Write;

use block::units::format_duration;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// A bar for `what` is done to `whose`, so many bytes of it; nothing is drawn where nobody looks.
pub fn bar(what: &str, whose: &str, all_bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(all_bytes);
    let template = "{msg} {prefix}  [{bar:14}] {percent:>2} %  {decimal_bytes_per_sec}  {left} \
                    left   (Ctrl-C leaves it running)";
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    let left = |state: &ProgressState, out: &mut dyn Write| {
        // A bar that cannot be written is seen by nobody.
        let _ = out.write_str(&format_duration(state.eta()));
    };
    bar.set_style(style.progress_chars("=> ").with_key("left", left));
    bar.set_message(what.to_owned());
    bar.set_prefix(whose.to_owned());
    bar
}
