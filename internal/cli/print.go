package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/telemetry"
)

// The values of --output.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
	asName  = "name"
)

// lines is a multi-line text of this program. Line feeds in any other text came from a peer and are escaped.
type lines string

// oneLine returns a peer's text in a printable form for one line on a terminal.
func oneLine(output string) string { return telemetry.Printable(output, "") }

// printf prints a text. All text from peers that verbs print passes through here, and rows through [grid].
func printf(w io.Writer, format string, args ...any) error {
	for i, a := range args {
		switch a := a.(type) {
		case string:
			args[i] = oneLine(a)
		case error:
			args[i] = oneLine(a.Error())
		}
	}
	_, err := fmt.Fprintf(w, format, args...)
	return err
}

var outputs = []string{asTable, asWide, asJSON, asYAML, asName}

// thing is one item of a list.
type thing struct {
	kind string
	// meta is the metadata of the object: name, namespace if it is about a cluster, uid.
	meta map[string]any
	// path is its name with the cluster's name, in the form of arguments.
	path    string
	message proto.Message
	row     []string
	// words are the fields of the message whose cell shows a word.
	words map[string]string
}

// printer prints items one by one.
type printer interface {
	show(t thing) error
	// end is called after the last item of a list.
	end() error
}

// newPrinter returns the printer of a format. alone: for one object that was requested by name, or for an
// endless list.
func newPrinter(w io.Writer, format string, header []string, sparse []int, alone bool) printer {
	switch format {
	case asName:
		return nameLines{w}
	case asJSON, asYAML:
		return &objects{w: w, yaml: format == asYAML, alone: alone}
	}
	return &grid{w: w, header: header, sparse: sparse}
}

// nameLines prints kind/name.
type nameLines struct{ w io.Writer }

func (n nameLines) show(t thing) error {
	return printf(n.w, "%s/%s\n", strings.ToLower(t.kind), t.path)
}
func (nameLines) end() error { return nil }

// objects prints a List as kubectl does, or objects one after the other.
type objects struct {
	w           io.Writer
	yaml, alone bool
	shown       int
}

// The text before, between and after the objects of a list.
const (
	jsonHead, jsonTail lines = "{\n    \"apiVersion\": \"v1\",\n    \"items\": [", "],\n    \"kind\": \"List\",\n    \"metadata\": {\n        \"resourceVersion\": \"\"\n    }\n}\n"
	yamlHead, yamlTail lines = "apiVersion: v1\nitems:", "kind: List\nmetadata:\n  resourceVersion: \"\"\n"
)

func (o *objects) show(t thing) error {
	o.shown++
	status := fieldsOf(t.message.ProtoReflect())
	for field, name := range t.words {
		status[field] = name
	}
	object := map[string]any{
		"apiVersion": "hawser.dev/v1", "kind": t.kind, "metadata": t.meta, "status": status,
	}
	if o.yaml {
		return o.showYAML(object)
	}
	if o.alone {
		b, err := json.MarshalIndent(object, "", "    ")
		return errors.Join(err, printf(o.w, "%s\n", b))
	}
	before := jsonHead
	if o.shown > 1 {
		before = ","
	}
	b, err := json.MarshalIndent(object, "        ", "    ")
	return errors.Join(err, printf(o.w, "%s\n        %s", before, b))
}

func (o *objects) showYAML(object any) error {
	b, err := yaml.Marshal(object)
	if err != nil {
		return err
	}
	text := lines(b)
	switch {
	case o.alone && o.shown > 1:
		return printf(o.w, "---\n%s", text)
	case o.alone:
		return printf(o.w, "%s", text)
	}
	if o.shown == 1 {
		if err := printf(o.w, "%s\n", yamlHead); err != nil {
			return err
		}
	}
	return printf(o.w, "- %s\n", lines(strings.ReplaceAll(strings.TrimSuffix(string(text), "\n"), "\n", "\n  ")))
}

func (o *objects) end() error {
	switch {
	case o.alone:
		return nil
	case o.yaml && o.shown == 0:
		return printf(o.w, "%s []\n%s", yamlHead, yamlTail)
	case o.yaml:
		return printf(o.w, "%s", yamlTail)
	case o.shown == 0:
		return printf(o.w, "%s%s", jsonHead, jsonTail)
	}
	return printf(o.w, "\n    %s", jsonTail)
}

// fieldsOf returns the fields of a message in the form of Kubernetes objects. Numbers are numbers, times are
// texts, and enum values are written LikeThis.
func fieldsOf(m protoreflect.Message) map[string]any {
	fields := map[string]any{}
	all := m.Descriptor().Fields()
	for i := range all.Len() {
		f := all.Get(i)
		name := f.JSONName()
		switch {
		case name == "nextPageToken": // the token belongs to the list, not to an item
		case f.IsList():
			items := []any{}
			for j := range m.Get(f).List().Len() {
				items = append(items, valueOf(f, m.Get(f).List().Get(j)))
			}
			fields[name] = items
		case f.Message() != nil && !m.Has(f):
			fields[name] = nil
		default:
			fields[name] = valueOf(f, m.Get(f))
		}
	}
	return fields
}

func valueOf(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	if f.Message() != nil {
		if t, ok := v.Message().Interface().(*timestamppb.Timestamp); ok {
			return t.AsTime().Format(time.RFC3339)
		}
		if d, ok := v.Message().Interface().(*durationpb.Duration); ok {
			return d.AsDuration().String()
		}
		return fieldsOf(v.Message())
	}
	if e := f.Enum(); e != nil {
		return camel(e, v.Enum())
	}
	return v.Interface()
}

// camel returns the word of an enum value without the name of its type: IN_SYNC of SyncState is InSync.
func camel(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	value := e.Values().ByNumber(n)
	if value == nil { // a newer broker sent the value
		return fmt.Sprint(n)
	}
	// All values share the prefix of the first one, which ends with UNSPECIFIED.
	prefix := strings.TrimSuffix(string(e.Values().Get(0).Name()), "UNSPECIFIED")
	name := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(string(value.Name()), prefix), "_") {
		name += part[:1] + strings.ToLower(part[1:])
	}
	return name
}

// grid prints rows below their header, in columns that never become narrower.
type grid struct {
	w      io.Writer
	header []string
	// sparse are the indexes of columns that are omitted if they are empty in the first list.
	sparse []int
	rows   [][]string
	widths []int
}

func (g *grid) show(t thing) error {
	g.rows = append(g.rows, t.row)
	return nil
}

// end prints the collected rows. The header is printed once; later rows follow below it.
func (g *grid) end() error {
	first := g.widths == nil
	if first && len(g.rows) == 0 {
		return printf(g.w, "none\n")
	}
	if first {
		g.sparse = slices.DeleteFunc(g.sparse, func(i int) bool {
			return slices.ContainsFunc(g.rows, func(row []string) bool { return row[i] != "" })
		})
		g.rows = append([][]string{g.header}, g.rows...)
	}
	for i, row := range g.rows {
		g.rows[i] = g.without(row)
	}
	if first {
		g.widths = make([]int, len(g.rows[0]))
	}
	for _, row := range g.rows {
		for i, cell := range row {
			if row[i] = oneLine(cell); cell == "" {
				row[i] = "-"
			}
			g.widths[i] = max(g.widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range g.rows {
		line := ""
		for i, cell := range row {
			line += cell
			if i < len(row)-1 {
				line += strings.Repeat(" ", g.widths[i]-utf8.RuneCountInString(cell)+3)
			}
		}
		if err := printf(g.w, "%s\n", line); err != nil {
			return err
		}
	}
	g.rows = nil
	return nil
}

// without returns a row without the omitted columns.
func (g *grid) without(row []string) []string {
	if len(g.sparse) == 0 {
		return row
	}
	var kept []string
	for i, cell := range row {
		if !slices.Contains(g.sparse, i) {
			kept = append(kept, cell)
		}
	}
	return kept
}

// table prints rows under their header, or a text that there are none.
func table(w io.Writer, header []string, rows [][]string) error {
	g := &grid{w: w, header: header, rows: rows}
	return g.end()
}

// age returns how long ago at was; empty if at is unknown.
func age(now time.Time, at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return ageOf(now, at.AsTime())
}

// ageOf is age of a known time.
func ageOf(now, at time.Time) string { return duration.HumanDuration(max(0, now.Sub(at))) }
