package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// bill returns the Go version and the modules in the programs of one archive, in CycloneDX form. The data is
// the build information that Go wrote into each program.
func (b build) bill(name string, binaries []file) ([]byte, error) {
	archive := cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: name, Name: name, Version: b.version}
	modules, dependencies := map[string]cdx.Component{}, []cdx.Dependency{}
	var components []cdx.Component
	var refs []string
	for _, f := range binaries {
		info, err := buildinfo.Read(bytes.NewReader(f.data))
		if err != nil {
			return nil, err
		}
		digest := sha256.Sum256(f.data)
		components = append(components, cdx.Component{
			Type: cdx.ComponentTypeApplication, BOMRef: f.name, Name: f.name, Version: b.version,
			Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(digest[:])}},
		})
		refs = append(refs, f.name)
		uses := []string{add(modules, "std", strings.TrimPrefix(info.GoVersion, "go"))}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			uses = append(uses, add(modules, m.Path, m.Version))
		}
		slices.Sort(uses)
		dependencies = append(dependencies, cdx.Dependency{Ref: f.name, Dependencies: &uses})
	}
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		components = append(components, modules[ref])
	}
	dependencies = append([]cdx.Dependency{{Ref: name, Dependencies: &refs}}, dependencies...)

	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: b.at.Format(time.RFC3339), Component: &archive}
	bom.Components, bom.Dependencies = &components, &dependencies
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

// add records a module and returns its package URL, with which others refer to it.
func add(modules map[string]cdx.Component, path, version string) string {
	ref := "pkg:golang/" + path + "@" + url.QueryEscape(version)
	modules[ref] = cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: ref, Name: path, Version: version, PackageURL: ref}
	return ref
}
