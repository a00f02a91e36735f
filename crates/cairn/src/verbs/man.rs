//! `cairn man`: manual pages, made from the definition of the command line.

use std::path::PathBuf;

use clap::{Args, Command};

use crate::complete;
use crate::exit::{Exit, Failure, Result};
use crate::man::{self, Page};
use crate::out;

/// Arguments of `man`.
#[derive(Args)]
pub struct ManArgs {
    /// Directory for all pages; by default the page of `cairn` is printed
    #[arg(conflicts_with = "page")]
    dir: Option<PathBuf>,
    /// Print this page: cairn-serve.1, cairn-spec.5; the section may be left out
    #[arg(long, value_name = "NAME", add = complete::page())]
    page: Option<String>,
}

impl ManArgs {
    /// Prints a manual page, or writes all pages into a directory.
    pub fn run(self, command: Command) -> Result {
        let pages = man::pages(command);
        let Some(dir) = &self.dir else {
            let page = match &self.page {
                Some(name) => find(&pages, name)?,
                None => &pages[0],
            };
            out::print(&page.text)?;
            return Ok(Exit::Ok);
        };
        std::fs::create_dir_all(dir)
            .map_err(|error| Failure::io(&error, format_args!("making {}", dir.display())))?;
        for Page { file, text } in &pages {
            let path = dir.join(file);
            std::fs::write(&path, text)
                .map_err(|error| Failure::io(&error, format_args!("writing {}", path.display())))?;
        }
        Ok(Exit::Ok)
    }
}

/// Returns the page with this name. The name may lack the section.
fn find<'p>(pages: &'p [Page], name: &str) -> Result<&'p Page> {
    let is_it = |page: &&Page| {
        let (stem, _) = page.file.rsplit_once('.').expect("the file of a page has a section");
        page.file == name || stem == name
    };
    pages.iter().find(is_it).ok_or_else(|| {
        let names: Vec<_> = pages.iter().map(|page| page.file.as_str()).collect();
        failure!(NotFound, "no page {name:?}; there are {}", names.join(", "))
    })
}
