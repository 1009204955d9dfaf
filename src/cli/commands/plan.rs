//! `shufflefs plan`.

use super::{options_of, sources_of};
use crate::cli::args::PlanArgs;
use crate::cli::dataset::Dataset;
use crate::cli::describe::{Plan, summary};
use crate::cli::options::Options;

/// Prints what a mount with these options would be.
pub fn run(args: PlanArgs) -> anyhow::Result<()> {
    let (dataset_args, options) = options_of(args.dataset)?;
    let options = Options { planned: true, ..options };
    let dataset = Dataset::open(&sources_of(&args.sources, &dataset_args)?, options)?;
    let plan = Plan::new(&dataset);
    let text = if args.json { serde_json::to_string_pretty(&plan.json(&dataset))? } else { summary(&dataset, &plan) };
    Ok(std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes())?)
}
