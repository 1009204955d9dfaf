//! `README.md` of a mount of molecules, and the snippet that `mount` prints.

use super::Molecules;
use crate::cli::dataset::Dataset;
use crate::cli::options::Format;
use crate::cli::readme::generator;
use crate::cli::text::count;
use crate::order::Pass;

/// Code that reads an epoch, ready to paste. `folder` is the directory of an epoch.
#[must_use]
pub fn snippet(format: Format, folder: &str) -> String {
    let (import, load, show) = match format {
        Format::Safetensors => (
            "from safetensors.numpy import load_file            # or safetensors.torch, safetensors.flax",
            "load_file",
            "{k: v.shape for k, v in batch.items() if not k.startswith(\"__\")}",
        ),
        Format::Npz => ("import numpy as np", "np.load", "{k: batch[k].shape for k in batch.files}"),
        Format::Atp => ("import atompack", "atompack.Database.open", "len(batch), batch[0].positions.shape"),
        Format::Extxyz => ("from ase.io import read", "lambda path: read(path, \":\", format=\"extxyz\")", "batch[0]"),
    };
    let definition = format!("def batches(folder, load={load}):                  ");
    generator(folder, import, &definition, "load", show)
}

/// The file: what this is, how to read it.
#[must_use]
pub fn readme(d: &Dataset, m: &Molecules, mount_point: &str) -> String {
    let format = d.options.format;
    let n = d.order.n_batches(Pass::Epoch(0));
    let size = d.order.batch_size();
    let extension = format.name();
    let fields: Vec<String> =
        m.fields.iter().filter(|f| f.served && !f.is_null).map(|f| format!("`{}`", f.name)).collect();
    let about = match format {
        Format::Safetensors | Format::Npz => FLAT,
        Format::Atp => ATP,
        Format::Extxyz => EXTXYZ,
    };
    let more = match format {
        Format::Safetensors => SAFETENSORS_SNIPPET.to_owned(),
        Format::Npz => NPZ_SNIPPET.to_owned(),
        Format::Atp => ATP_SNIPPET.to_owned(),
        Format::Extxyz => EXTXYZ_SNIPPET.replace("MNT", mount_point),
    };
    format!(
        r#"# A shuffled view of molecules

{rows} molecules with {atoms} atoms, served by shufflefs as batch files of {size} molecules, in another order for every epoch.
The files are made when they are opened; nothing was converted or copied. Everything is read-only.

    epoch-00000/, epoch-00001/, ...   one directory per epoch; any number up to epoch-2097151 can be opened, listed or not
        batch-0000000.{extension:15} {n} batches per epoch, each molecule in exactly one of them
        batches.txt                   their names in order (quicker than listing)
        rows.npy                      the row ids of all batches in order, int64
        rank-0-of-4/                  the share of rank 0 of 4 (any rank of any world size); hosts: host-0-of-2/rank-0-of-4/
    inorder/                          the same, unshuffled: for validation and inference
    dataset.json                      fields, files, options, fingerprint
    .shufflefs/                       status.json, errors.tsv, log, blocks.npy, config.toml

The path is the state: to resume, open the next name; to skip a bad batch, skip its name. Another seed is another mount
(`--seed`). Names are shuffled already: read them in the order of `batches.txt`, with `shuffle=False`.

## What is in a batch

{about}
Fields: {fields}.

## Reading

```python
{snippet}```

{more}
Memory that a reader keeps mapped or open counts against `--memory` of the mount: close batches that are done.
"#,
        rows = count(d.schema().n_rows),
        atoms = count(m.n_atoms),
        n = count(n),
        fields = if fields.is_empty() { "all, as stored".to_owned() } else { fields.join(", ") },
        snippet = snippet(format, &format!("{mount_point}/epoch-00000")),
    )
}

const FLAT: &str = "- `positions`, `atomic_numbers` and other fields of atoms: those of all molecules one behind the other. Molecule i has the rows `ptr[i]` to
  `ptr[i + 1]` of them, and `n_atoms[i]` of them.
- Fields of molecules, such as `energy`: one row each. `properties.<key>`, `atom_properties.<key>`: the other properties.
- `<field>.present`: false where a molecule lacks the field. Its values are NaN then (0 for integers): look before you train on them.
- Text: the bytes of molecule i are `<field>.bytes[<field>.offsets[i]:<field>.offsets[i + 1]]`, UTF-8. Tensors whose shape differs: likewise
  `<field>.values`, with `<field>.dims` (-1: no such dimension).
- `row`: the molecule's place in the sources, counted over all of them. `__pad*` are gaps that align the others: skip them.
";

const ATP: &str = "Each batch is an Atompack database: the records as they are stored, in shuffled order. Which molecules they are is in `rows.npy`.
";

const EXTXYZ: &str =
    "One frame per molecule. What a molecule lacks is not in its frame. `row` is its place in the sources.
";

const SAFETENSORS_SNIPPET: &str = r#"```python
# PyTorch: a batch for a graph network (what PyTorch Geometric calls `ptr` and `batch`)
from safetensors.torch import load_file
t = load_file(path)
pos, z, ptr = t["positions"], t["atomic_numbers"].long(), t["ptr"]
batch = torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff())
has_energy = t["energy.present"]                     # NaN where it is False
# one molecule for ASE
s = slice(ptr[i], ptr[i + 1])
atoms = Atoms(numbers=t["atomic_numbers"][s], positions=t["positions"][s])
```
"#;

const NPZ_SNIPPET: &str = r#"```python
b = np.load(path)
ptr = b["ptr"]
positions = np.split(b["positions"], ptr[1:-1])      # one array per molecule
```
"#;

const ATP_SNIPPET: &str = r#"```python
import atompack                                      # pip install atompack-db
db = atompack.Database.open(path)
molecule = db[0]
flat = db.get_molecules_flat(list(range(len(db))))   # needs fields that all molecules have
```
"#;

const EXTXYZ_SNIPPET: &str = r#"```python
from ase.io import read
frames = read(path, ":", format="extxyz")
frames[0].get_potential_energy(), frames[0].get_forces()
```

MACE reads whole files and shuffles by itself; an epoch is one file to it:

```sh
cat MNT/epoch-00000/batch-*.extxyz > train.extxyz
mace_run_train --train_file=train.extxyz --energy_key=energy --forces_key=forces --stress_key=stress ...
```
"#;
