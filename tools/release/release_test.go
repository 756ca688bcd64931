package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const builtAt = 1_700_000_000

// checkout creates a small checkout with built programs.
func checkout(t *testing.T) build {
	t.Helper()
	b := build{
		root: t.TempDir(), version: "v1.2.3", at: time.Unix(builtAt, 0).UTC(), printf: func(line string) { t.Log(line) },
		platforms: []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}, {OS: "darwin", Architecture: "arm64"}},
	}
	for name, text := range map[string]string{
		"LICENSE": "do what you like", "README.md": "# Hawser", "CHANGELOG.md": "# Changelog\n\n## v1.2.3\n\n* Works.\n",
		"deploy/images/kustomization.yaml": "images:\n  - name: a\n    newTag: dev\n  - name: b\n    newTag: dev\n",
		"deploy/files.go":                  "package deploy",
		"docs/operations/README.md":        "# Operations",
		"deploy/charts/a/Chart.yaml":       "name: a\nversion: 0.0.0\nappVersion: dev\n",
	} {
		write(t, filepath.Join(b.root, filepath.FromSlash(name)), []byte(text))
	}
	if err := os.Symlink("../../images", filepath.Join(b.root, "deploy", "charts", "a", "base")); err != nil {
		t.Fatal(err)
	}
	for _, p := range b.platforms {
		for _, program := range programs {
			write(t, b.binary(p, program), builds(t)[p.OS+"/"+p.Architecture])
		}
	}
	return b
}

// small builds a small program for each platform.
var small = sync.OnceValues(func() (built map[string][]byte, err error) {
	dir, err := os.MkdirTemp("", "small")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	source, out := filepath.Join(dir, "main.go"), filepath.Join(dir, "small")
	if err := os.WriteFile(source, []byte("package main\nfunc main() {}\n"), 0o600); err != nil {
		return nil, err
	}
	built = map[string][]byte{}
	for _, platform := range []string{"linux/amd64", "linux/arm64", "darwin/arm64"} {
		system, architecture, _ := strings.Cut(platform, "/")
		cmd := exec.Command("go", "build", "-trimpath", "-o", out, source)
		cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+architecture)
		if reported, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", platform, err, reported)
		}
		if built[platform], err = os.ReadFile(out); err != nil {
			return nil, err
		}
	}
	return built, nil
})

func builds(t *testing.T) map[string][]byte {
	t.Helper()
	built, err := small()
	if err != nil {
		t.Fatal(err)
	}
	return built
}

func write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o750), os.WriteFile(name, data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// packed returns all files of a release and of its images.
func packed(t *testing.T, b build) map[string]string {
	t.Helper()
	if err := errors.Join(b.images(), b.archives()); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, dir := range []string{"bin/images", "bin/release"} {
		files, err := readTree(b.root, dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			all[f.name] = fmt.Sprintf("%x", sha256.Sum256(f.data))
		}
	}
	return all
}

// TestPack_SameBytesInTwoFolders: builds in two folders have equal bytes, also if one folder has files of an
// earlier build.
func TestPack_SameBytesInTwoFolders(t *testing.T) {
	first := packed(t, checkout(t))
	b := checkout(t)
	write(t, filepath.Join(b.root, "bin/images/hawser/blobs/sha256/old"), []byte("of the build before"))
	if diff := cmp.Diff(first, packed(t, b)); diff != "" {
		t.Errorf("two builds differ (-first +second):\n%s", diff)
	}
	if len(first) < 40 {
		t.Errorf("only %d files were compared", len(first))
	}
}

// TestImages_HoldTheProgramAndRoots: an image has its program and the public CAs, and runs as the user in
// deploy/.
func TestImages_HoldTheProgramAndRoots(t *testing.T) {
	b := checkout(t)
	if err := b.images(); err != nil {
		t.Fatal(err)
	}
	for _, program := range programs {
		path, err := layout.ImageIndexFromPath(b.imageDir(program))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(path); err != nil {
			t.Errorf("%s: %v", program, err)
		}
		top, err := path.IndexManifest()
		if err != nil || len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != b.version {
			t.Fatalf("%s: layout has %+v, %v; want one entry with the version", program, top, err)
		}
		index, err := path.ImageIndex(top.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil || len(manifest.Manifests) != 2 {
			t.Fatalf("%s: %+v, %v; want two platforms", program, manifest, err)
		}
		for _, d := range manifest.Manifests {
			img, err := index.Image(d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			checkImage(t, b, program, *d.Platform, img)
		}
	}
}

func checkImage(t *testing.T, b build, program string, p v1.Platform, img v1.Image) {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.OS != "linux" || c.Architecture != p.Architecture || !slices.Equal(c.Config.Entrypoint, []string{"/" + program}) || c.Config.User != user || !c.Created.Equal(b.at) {
		t.Errorf("%s, %v: configuration %+v", program, p, c)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	held := map[string][]byte{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		files(t, held, r)
	}
	binary, err := os.ReadFile(b.binary(p, program))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(held[program], binary) || len(held) != 2 {
		t.Errorf("%s, %v: has %d files, want the program for %v and %s", program, p, len(held), p, rootsFile)
	}
	roots := 0
	for rest := held[rootsFile]; ; roots++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Error(err)
		}
	}
	if roots < 100 {
		t.Errorf("%d certificate authorities, want more than a hundred", roots)
	}
}

// files reads an archive whose files all belong to root and are writable by root only.
func files(t *testing.T, into map[string][]byte, r io.Reader) {
	t.Helper()
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o022 != 0 {
			t.Errorf("%s has mode %o and belongs to %d:%d", h.Name, h.Mode, h.Uid, h.Gid)
		}
		if at := h.ModTime.Unix(); at != 0 && at != builtAt {
			t.Errorf("%s is of %v, and not of the commit or of no time", h.Name, h.ModTime)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if into[h.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImages_AreThoseOfDeploy: the user of the images is the user in deploy/, and each whole Deployment has an
// image. Patches in overlays have neither.
func TestImages_AreThoseOfDeploy(t *testing.T) {
	found, err := filepath.Glob("../../deploy/*/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	whole := 0
	for _, name := range found {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`image:|runAs`).Match(data) {
			continue
		}
		whole++
		id := regexp.MustCompile(`runAsUser: (\d+)\n\s+runAsGroup: (\d+)`).FindStringSubmatch(string(data))
		image := regexp.MustCompile(`image: (\S+)`).FindStringSubmatch(string(data))
		if id == nil || id[1]+":"+id[2] != user || image == nil || !slices.Contains(programs, image[1]) {
			t.Errorf("%s runs image %v as %v; images are made for %s, as %s", name, image, id, programs, user)
		}
	}
	if whole != 3 {
		t.Errorf("%d whole Deployments in %v, want 3", whole, found)
	}
}

// TestArchives_AreComplete: a release has digests, its version, and a list of its content.
func TestArchives_AreComplete(t *testing.T) {
	b := checkout(t)
	if err := errors.Join(b.images(), b.archives()); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(b.path("SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(b.path())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(b.path(e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("%x  %s\n", sha256.Sum256(data), e.Name())
		if e.Name() != "SHA256SUMS" && !strings.Contains(string(sums), line) {
			t.Errorf("SHA256SUMS lacks %q", line)
		}
	}
	if n := strings.Count(string(sums), "\n"); n != len(entries)-1 {
		t.Errorf("SHA256SUMS has %d lines, %d files are there", n, len(entries)-1)
	}
	for name, want := range map[string][]string{
		"hawser_v1.2.3_linux_arm64":  {"LICENSE", "hawser", "hawser-agent", "hawser-broker", "hawser-hub-source"},
		"hawser_v1.2.3_darwin_arm64": {"LICENSE", "hawser"},
		"hawser_v1.2.3_manifests":    {"CHANGELOG.md", "LICENSE", "README.md", "deploy/charts/a/Chart.yaml", "deploy/charts/a/base/kustomization.yaml", "deploy/images/kustomization.yaml", "docs/operations/README.md"},
		"a":                          {"Chart.yaml", "base/kustomization.yaml"},
	} {
		file := name + ".tar.gz"
		if name == "a" {
			file = "a-1.2.3.tgz"
		}
		held := unpack(t, b.path(file))
		var got []string
		for path := range held {
			got = append(got, strings.TrimPrefix(path, name+"/"))
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if k, ok := held[name+"/deploy/images/kustomization.yaml"]; ok && strings.Count(string(k), "newTag: \"v1.2.3\"\n") != 2 {
			t.Errorf("the manifests name images %s", k)
		}
		for _, in := range []string{"/Chart.yaml", "/deploy/charts/a/Chart.yaml"} {
			if c, ok := held[name+in]; ok && string(c) != "name: a\nversion: \"1.2.3\"\nappVersion: \"v1.2.3\"\n" {
				t.Errorf("%s has the chart %s", name, c)
			}
		}
	}
	if text, err := os.ReadFile(b.path("notes.md")); err != nil || string(text) != "# Hawser v1.2.3\n\n* Works.\n" {
		t.Errorf("notes %q, %v", text, err)
	}
}

func unpack(t *testing.T, name string) map[string][]byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	held := map[string][]byte{}
	files(t, held, r)
	return held
}

// TestBill_ListsModulesOfProgram: each dependency of a program is a component with its version.
func TestBill_ListsModulesOfProgram(t *testing.T) {
	exe, err := os.Executable() // this test binary is a program with dependencies
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	b := build{version: "v1.2.3", at: time.Unix(0, 0).UTC()}
	text, err := b.bill("hawser_v1.2.3_linux_amd64", []file{{name: "hawser", data: data}, {name: "hawser-agent", data: data}})
	if err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	refs := map[string]int{bom.Metadata.Component.BOMRef: 1}
	for _, c := range *bom.Components {
		refs[c.BOMRef]++
	}
	std := "pkg:golang/std@" + strings.TrimPrefix(runtime.Version(), "go")
	if refs[std] != 1 || refs["hawser"] != 1 || refs["hawser-agent"] != 1 {
		t.Errorf("components %v, want each program and %s once", refs, std)
	}
	for _, d := range *bom.Dependencies {
		for _, ref := range append(*d.Dependencies, d.Ref) {
			if refs[ref] != 1 {
				t.Errorf("%s needs %s, which is %d components", d.Ref, ref, refs[ref])
			}
		}
		if d.Ref == "hawser" && !slices.ContainsFunc(*d.Dependencies, func(ref string) bool {
			return strings.HasPrefix(ref, "pkg:golang/github.com/google/go-containerregistry@v")
		}) {
			t.Errorf("hawser needs %v, which lacks what this test is built from", *d.Dependencies)
		}
	}
}

func TestNotes_AreTheSectionOfTheVersion(t *testing.T) {
	const changelog = "# Changelog\n\nAll changes.\n\n## Unreleased\n\n* Soon.\n\n## v1.10.0 (2026-01-02)\n\n* New.\n\n## v1.1.0\n\n* Old.\n"
	for of, want := range map[string]string{
		"v1.10.0": "# Hawser v1.10.0\n\n* New.\n", "v1.1.0": "# Hawser v1.1.0\n\n* Old.\n",
		"v1.1.0-5-gabc": "# Hawser v1.1.0-5-gabc\n\n* Soon.\n", "abc-dirty": "# Hawser abc-dirty\n\n* Soon.\n",
	} {
		if got, err := notes(changelog, of); err != nil || got != want {
			t.Errorf("notes of %s: %q, %v; want %q", of, got, err, want)
		}
	}
	if got, err := notes(changelog, "v1.2.0"); err == nil || !strings.Contains(err.Error(), `"## v1.2.0"`) {
		t.Errorf("notes of a version that the changelog does not know: %q, %v", got, err)
	}
}

func TestRun_ErrorNamesMissingPart(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-platforms=linux/amd64 images", "-version is not set"},
		{"-version=v1 -platforms=linux images", `"linux" is not OS/ARCH`},
		{"-version=v1 -platforms=linux/amd64 all", "say images or archives"},
		{"-version=v1 -platforms=linux/amd64 -root=testdata images", "image of hawser"},
	} {
		if err := run(strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
}

func TestChartVersion_IsSemantic(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1", "v0.1.0-20-gabc1234-dirty": "0.1.0-20-gabc1234-dirty",
		"0123456": "0.0.0-g0123456", "unknown": "0.0.0-gunknown", "abc_1": "0.0.0-gabc-1",
	} {
		if got := chartVersion(version); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}
