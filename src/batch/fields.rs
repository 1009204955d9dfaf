//! What a batch consists of: one [`Field`] per array, the same for every format that uses the common names.
//!
//! The order of fields is the order in the file: the streamed elements first (values, indices, row pointers), then resident
//! columns by falling item size, text last, so that few gaps are needed to align them.

use std::sync::Arc;

use super::BatchShape;
use crate::dtype::DType;
use crate::store::{Categories, ColumnData, ElementId, ElementKind, Schema, ServedGenes};

/// Categories up to this many bytes of JSON travel in every batch; longer lists are in `dataset.json` only.
const INLINE_CATEGORIES_BYTES: usize = 16 * 1024;

/// What batches of a dataset contain, as chosen by the user.
#[derive(Debug, Clone)]
pub struct BatchSpec {
    /// The dataset.
    pub schema: Arc<Schema>,
    /// True if sparse elements on the gene axis are served dense.
    pub dense: bool,
    /// Seed of the order, for the metadata.
    pub seed: u64,
    /// Hash of schema, gene names, row counts and row lengths, for the metadata.
    pub fingerprint: String,
}

/// How an element's scattered rows become its arrays in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Render {
    /// CSR as stored, or with columns that were renumbered on the way.
    Csr,
    /// CSR with genes dropped or permuted in some rows: compacted in place.
    CsrGenes,
    /// CSR made dense.
    Densify,
    /// Dense as stored.
    Dense,
    /// Dense with genes moved.
    DenseGenes,
    /// Sparse rows made dense among dense ones as stored.
    Mixed,
    /// The same, with genes moved.
    MixedGenes,
}

/// One array of a batch file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name in the file, such as `X.data` or `obs.cell_type.codes`.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// What it holds.
    pub content: Content,
    /// Its extent.
    pub extent: FieldExtent,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Values of a sparse element.
    Data(ElementId),
    /// Column indices of a sparse element.
    Indices(ElementId),
    /// Row pointers of a sparse element.
    IndPtr(ElementId),
    /// Rows and columns of an element: two int64.
    Shape(ElementId),
    /// Sum of each row's values before genes were dropped.
    Total(ElementId),
    /// A dense matrix.
    Matrix(ElementId),
    /// A numeric column of `obs`, by its place in the schema.
    Numeric(usize),
    /// Codes of a categorical column.
    Codes(usize),
    /// A text column.
    Text(usize),
    /// Which values of a nullable column are there.
    Present(usize),
    /// Names of the rows.
    Names,
    /// Global row ids.
    Row,
    /// Which source each row is from.
    Source,
}

/// Extent of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldExtent {
    /// One element per row.
    Rows,
    /// A fixed number of elements per row.
    RowsBy(u64),
    /// One element per stored value of a sparse element.
    Values(ElementId),
    /// One element per row, and one more.
    RowsPlusOne,
    /// Two elements.
    Two,
}

impl FieldExtent {
    /// Number of elements in a batch of this shape. Saturates instead of overflowing: nothing that large fits a budget.
    #[must_use]
    pub fn n_elems(self, shape: BatchShape<'_>) -> u64 {
        let rows = u64::from(shape.n_rows);
        match self {
            Self::Rows => rows,
            Self::RowsBy(n) => rows.saturating_mul(n),
            Self::Values(e) => shape.n_values.get(e).copied().unwrap_or(0),
            Self::RowsPlusOne => rows + 1,
            Self::Two => 2,
        }
    }
}

/// Two arrays of a batch would have the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: both {first} and {second} would be stored under this name; leave one out (--obs, --layers, --obsm)")]
pub struct NameClash {
    /// The name.
    pub name: String,
    /// What takes it first.
    pub first: String,
    /// What takes it again.
    pub second: String,
}

impl BatchSpec {
    /// How `element` is rendered.
    #[must_use]
    pub fn render(&self, element: ElementId) -> Render {
        let e = &self.schema.elements[element];
        let genes = self.schema.genes_of(element);
        match e.kind {
            ElementKind::Sparse { .. } if self.dense && e.gene_axis => Render::Densify,
            ElementKind::Sparse { .. } if genes.is_some_and(ServedGenes::any_unsettled) => Render::CsrGenes,
            ElementKind::Sparse { .. } => Render::Csr,
            ElementKind::Dense { .. } if genes.is_some() => Render::DenseGenes,
            ElementKind::Dense { .. } | ElementKind::Lengths => Render::Dense,
            ElementKind::Mixed { .. } if genes.is_some() => Render::MixedGenes,
            ElementKind::Mixed { .. } => Render::Mixed,
        }
    }

    /// True if `element` is served as CSR.
    #[must_use]
    pub fn is_csr(&self, element: ElementId) -> bool {
        matches!(self.render(element), Render::Csr | Render::CsrGenes)
    }

    /// Columns of `element` in a batch.
    #[must_use]
    pub fn n_cols_out(&self, element: ElementId) -> u64 {
        self.schema.genes_of(element).map_or(self.schema.elements[element].n_cols, |genes| u64::from(genes.n_out))
    }

    /// The arrays of a batch, in file order.
    ///
    /// # Errors
    /// [`NameClash`] if two would have the same name.
    pub fn fields(&self) -> Result<Vec<Field>, NameClash> {
        let mut fields = Vec::new();
        for (i, element) in self.schema.elements.iter().enumerate() {
            self.element_fields(i, &element.name, &mut fields);
        }
        let mut resident = self.resident_fields();
        resident.sort_by_key(|f| {
            let text = matches!(f.content, Content::Text(_) | Content::Names);
            (text, std::cmp::Reverse(f.dtype.size_bytes()))
        });
        fields.extend(resident);
        self.refuse_clashes(&fields)?;
        Ok(fields)
    }

    fn element_fields(&self, i: ElementId, name: &str, fields: &mut Vec<Field>) {
        let (dtype, index_dtype) = (self.schema.elements[i].dtype, self.schema.elements[i].index_dtype);
        let field = |name: String, dtype, content, extent| Field { name, dtype, content, extent };
        match self.is_csr(i) {
            true => {
                fields.push(field(format!("{name}.data"), dtype, Content::Data(i), FieldExtent::Values(i)));
                fields.push(field(format!("{name}.indices"), index_dtype, Content::Indices(i), FieldExtent::Values(i)));
                fields.push(field(format!("{name}.indptr"), DType::I32, Content::IndPtr(i), FieldExtent::RowsPlusOne));
                fields.push(field(format!("{name}.shape"), DType::I64, Content::Shape(i), FieldExtent::Two));
            }
            false => {
                let extent = FieldExtent::RowsBy(self.n_cols_out(i));
                fields.push(field(name.to_owned(), dtype, Content::Matrix(i), extent));
            }
        }
        if name == "X" && self.schema.genes_of(i).is_some_and(|genes| genes.is_choice) {
            fields.push(field("X.total".into(), DType::F64, Content::Total(i), FieldExtent::Rows));
        }
    }

    fn resident_fields(&self) -> Vec<Field> {
        let mut fields = Vec::new();
        let mut push = |name, dtype, content, extent| fields.push(Field { name, dtype, content, extent });
        push("row".into(), DType::I64, Content::Row, FieldExtent::Rows);
        if self.schema.sources.len() > 1 {
            push("source".into(), DType::I32, Content::Source, FieldExtent::Rows);
        }
        for (i, column) in self.schema.columns.iter().enumerate() {
            let name = &column.name;
            match &column.data {
                ColumnData::Numeric { dtype, .. } => {
                    push(format!("obs.{name}"), *dtype, Content::Numeric(i), FieldExtent::Rows)
                }
                ColumnData::Categorical { .. } => {
                    push(format!("obs.{name}.codes"), DType::I64, Content::Codes(i), FieldExtent::Rows);
                }
                ColumnData::Strings(s) => {
                    push(
                        format!("obs.{name}"),
                        DType::U8,
                        Content::Text(i),
                        FieldExtent::RowsBy(text_width(s.max_len())),
                    );
                }
            }
            if column.present.is_some() {
                push(format!("obs.{name}.present"), DType::Bool, Content::Present(i), FieldExtent::Rows);
            }
        }
        if let Some(names) = &self.schema.obs_names {
            push("obs_names".into(), DType::U8, Content::Names, FieldExtent::RowsBy(text_width(names.max_len())));
        }
        fields
    }

    fn refuse_clashes(&self, fields: &[Field]) -> Result<(), NameClash> {
        let mut seen = std::collections::HashMap::new();
        for field in fields {
            if let Some(first) = seen.insert(field.name.as_str(), field.content) {
                return Err(NameClash {
                    name: field.name.clone(),
                    first: self.origin(first),
                    second: self.origin(field.content),
                });
            }
        }
        Ok(())
    }

    fn origin(&self, content: Content) -> String {
        match content {
            Content::Data(e)
            | Content::Indices(e)
            | Content::IndPtr(e)
            | Content::Shape(e)
            | Content::Total(e)
            | Content::Matrix(e) => format!("the matrix {}", self.schema.elements[e].name),
            Content::Numeric(c) | Content::Codes(c) | Content::Text(c) | Content::Present(c) => {
                format!("the obs column {:?}", self.schema.columns[c].name)
            }
            Content::Names => "the obs names".into(),
            Content::Row => "the row ids".into(),
            Content::Source => "the source numbers".into(),
        }
    }

    /// Facts about the fields that readers need and arrays cannot carry, the same in every batch: `(key, text)`.
    #[must_use]
    pub fn constant_metadata(&self) -> Vec<(String, String)> {
        let mut meta = Vec::new();
        for (i, element) in self.schema.elements.iter().enumerate() {
            let encoding = if self.is_csr(i) { "csr" } else { "dense" };
            meta.push((format!("{}.encoding", element.name), encoding.to_owned()));
        }
        for column in &self.schema.columns {
            let name = &column.name;
            match &column.data {
                ColumnData::Categorical { categories, ordered, .. } => {
                    let labels = categories_json(categories).to_string();
                    if labels.len() <= INLINE_CATEGORIES_BYTES {
                        meta.push((format!("obs.{name}.categories"), labels));
                    }
                    meta.push((format!("obs.{name}.ordered"), ordered.to_string()));
                }
                ColumnData::Strings(_) => meta.push((format!("obs.{name}.encoding"), "utf8-nul-padded".to_owned())),
                ColumnData::Numeric { .. } => {}
            }
        }
        if self.schema.obs_names.is_some() {
            meta.push(("obs_names.encoding".to_owned(), "utf8-nul-padded".to_owned()));
        }
        meta
    }
}

/// Bytes per string: at least 1, since readers cannot view a zero-width array as text.
#[must_use]
pub fn text_width(max_len: usize) -> u64 {
    max_len.max(1) as u64
}

/// The categories as a JSON array: text as strings, numbers as numbers.
#[must_use]
pub fn categories_json(categories: &Categories) -> serde_json::Value {
    match categories {
        Categories::Text(labels) => labels.iter().collect::<Vec<_>>().into(),
        Categories::Numeric { dtype, bytes } => {
            bytes.chunks_exact(dtype.size_bytes()).map(|v| dtype.load_json(v)).collect::<Vec<_>>().into()
        }
    }
}
