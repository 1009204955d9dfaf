//! `README.md` of a mount, and the snippet that `mount` prints.

use super::dataset::Dataset;
use super::text::count;
use crate::order::Pass;
use crate::store::ColumnData;

/// A generator over an epoch of cells, see [`generator`].
#[must_use]
pub fn snippet(folder: &str) -> String {
    let import = "from safetensors.numpy import load_file            # or safetensors.torch, safetensors.flax";
    let show = r#"{k: v.shape for k, v in batch.items() if not k.startswith("__")}"#;
    generator(folder, import, "def batches(folder):                               ", "load_file", show)
}

/// A generator over an epoch with one reading thread ahead, ready to paste. `folder` is the directory of an epoch. `definition` begins the
/// function, `load` is what it calls for each path, `show` what is printed of a `batch`.
#[must_use]
pub fn generator(folder: &str, import: &str, definition: &str, load: &str, show: &str) -> String {
    // A JSON string is a Python string, whatever characters the path has.
    let quoted = serde_json::Value::from(folder).to_string();
    format!(
        r#"from concurrent.futures import ThreadPoolExecutor
{import}

{definition}# one thread reads ahead; the names are shuffled already:
    names = open(f"{{folder}}/batches.txt").read().split()   # never shuffle them again (shuffle=False)
    with ThreadPoolExecutor(1) as pool:
        ahead = [pool.submit({load}, f"{{folder}}/{{names[0]}}")]
        for name in names[1:]:
            ahead.append(pool.submit({load}, f"{{folder}}/{{name}}"))
            yield ahead.pop(0).result()
        yield ahead.pop(0).result()

for batch in batches({quoted}):
    print({show}); break
"#
    )
}

/// The file: what this is, how to read it.
#[must_use]
pub fn readme(d: &Dataset, mount_point: &str) -> String {
    if let Some(m) = &d.molecules {
        return super::molecules::readme::readme(d, m, mount_point);
    }
    let schema = d.schema();
    let n = d.order.n_batches(Pass::Epoch(0));
    let m = d.order.batch_size();
    let sparse = (0..schema.elements.len()).any(|e| d.spec.is_csr(e));
    let shape = if sparse { CSR } else { DENSE };
    let dataset_json = serde_json::Value::from(format!("{mount_point}/dataset.json")).to_string();
    let mut more = String::new();
    if sparse {
        more.push_str(CSR_SNIPPET);
    }
    if schema.obs_names.is_some() {
        more.push_str(NAMES_SNIPPET);
    }
    let categorical = schema.columns.iter().find(|c| matches!(c.data, ColumnData::Categorical { .. }));
    if let Some(column) = categorical {
        let name = serde_json::Value::from(column.name.as_str()).to_string();
        let codes = serde_json::Value::from(format!("obs.{}.codes", column.name)).to_string();
        more.push_str(&format!(
            "# the labels of a categorical\nc = next(c for c in json.load(open({dataset_json}))[\"columns\"] if c[\"name\"] == {name})\n\
             labels = np.array(c[\"categories\"] + [None], dtype=object)[t[{codes}]]\n"
        ));
    }
    let columns: Vec<String> = schema.columns.iter().map(|c| format!("`{}`", c.name)).collect();
    let columns = if columns.is_empty() { "none".to_owned() } else { columns.join(", ") };
    format!(
        r#"# A shuffled view of a dataset

{rows} cells x {genes} genes, served by shufflefs as batch files of {m} rows, in another order for every epoch.
The files are made when they are opened; nothing was converted or copied. Everything is read-only.

    epoch-00000/, epoch-00001/, ...   one directory per epoch; any number up to epoch-2097151 can be opened, listed or not
        batch-0000000.safetensors     {n} batches per epoch, each cell in exactly one of them
        batches.txt                   their names in order (quicker than listing)
        rows.npy                      the row ids of all batches in order, int64
        rank-0-of-4/                  the share of rank 0 of 4 (any rank of any world size); hosts: host-0-of-2/rank-0-of-4/
    inorder/                          the same, unshuffled: for validation and inference
    dataset.json                      columns, categories and their counts, options, fingerprint
    var_names.txt                     one gene per line, in the order of the columns of X
    .shufflefs/                       status.json, errors.tsv, log, blocks.npy, config.toml

The path is the state: to resume, open the next name; to skip a bad batch, skip its name. Another seed is another mount
(`--seed`). Names are shuffled already: read them in the order of `batches.txt`, with `shuffle=False`, and without a
`DistributedSampler` (each rank has its directory).

The first batch is an unbiased sample of the dataset; the first rows of the source file usually are not.

## What is in a batch

{shape}- Columns of obs: {columns}. `obs.<column>`: numbers and booleans; `obs.<column>.codes`: int64 codes of a categorical (-1 = missing; labels are in
  `dataset.json`); `obs.<column>.present`: which values of a nullable column are there. Text is NUL-padded UTF-8.
- `obs_names`, `row` (the row's place in {places}). `__pad*` are gaps that align the others: skip them.

## PyTorch, numpy, JAX

```python
{snippet}```

With `load_file`, a plain generator with one thread ahead is the fastest way: workers of a `DataLoader` copy every tensor once more. If you use one:
`DataLoader(names, batch_size=None, shuffle=False, collate_fn=load)`.

```python
{more}```

The quickest read of all goes into one buffer that is kept and begins at a page boundary:

```python
size = 2 * max(os.stat(path).st_size for path in paths)    # enough for all epochs
buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)   # one per process
n = open(path, "rb", buffering=0).readinto(buffer)   # less than the file: the mount has gone (or more than 2 GiB)
h = json.loads(buffer[8 : 8 + int.from_bytes(buffer[:8], "little")])
x = np.frombuffer(buffer, ...)                       # a view, valid until the next read: copy what has to live longer
```

Memory that a reader keeps mapped or open counts against `--memory` of the mount: close batches that are done.
"#,
        rows = count(schema.n_rows),
        genes = count(d.genes.len() as u64),
        n = count(n),
        places = if schema.sources.len() > 1 {
            "all sources, one after the other), `source` (the number of its source in `dataset.json`"
        } else {
            "the source"
        },
        snippet = snippet(&format!("{mount_point}/epoch-00000")),
    )
}

const CSR: &str = "- `X.data`, `X.indices` (int32), `X.indptr` (int32), `X.shape`: the rows of X as CSR, exactly as stored (rows may be unsorted
  if the source's are: `scipy`'s `sort_indices()`, `sum_duplicates()`). Layers: `layers.<name>.*`. `obsm.<key>`: dense.
";

const CSR_SNIPPET: &str = r#"# PyTorch: the sparse matrix (pass the shape; inferring it is silently wrong)
x = torch.sparse_csr_tensor(t["X.indptr"], t["X.indices"], t["X.data"], size=tuple(t["X.shape"]))
# scipy
x = scipy.sparse.csr_matrix((t["X.data"], t["X.indices"], t["X.indptr"]), shape=tuple(t["X.shape"]))
"#;

const NAMES_SNIPPET: &str = r#"# the names of the cells
names = np.char.decode(t["obs_names"].view(f"S{t['obs_names'].shape[1]}").ravel())
"#;

const DENSE: &str = "- `X`: dense rows. Layers: `layers.<name>`. `obsm.<key>`: dense.
";
