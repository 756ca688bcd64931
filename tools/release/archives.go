package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// onLaptops are the programs in archives for systems other than Linux: the command-line tool.
var onLaptops = []string{"hawser"}

// archives writes the files of a release into bin/release. For each platform it writes the programs and their
// bills of materials. It also writes the manifests with the documentation, the charts, the images, the notes,
// and the digests of all these.
func (b build) archives() error {
	if err := os.RemoveAll(b.path()); err != nil {
		return err
	}
	if err := os.MkdirAll(b.path(), 0o750); err != nil {
		return err
	}
	r := &release{build: b}
	for _, p := range b.platforms {
		names := programs
		if p.OS != "linux" {
			names = onLaptops
		}
		if err := r.programs(fmt.Sprintf("hawser_%s_%s_%s", b.version, p.OS, p.Architecture), names, func(program string) string { return b.binary(p, program) }); err != nil {
			return err
		}
	}
	if err := errors.Join(r.manifests(), r.charts(), r.imageArchives(), r.notes()); err != nil {
		return err
	}
	return r.write("SHA256SUMS", []byte(r.sums.String()))
}

func (b build) path(name ...string) string {
	return filepath.Join(append([]string{b.root, "bin", "release"}, name...)...)
}

// release is a release that is being written, with its digests.
type release struct {
	build
	sums strings.Builder
}

// write writes one file of the release.
func (r *release) write(name string, data []byte) error {
	f, err := os.Create(r.path(name))
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	fmt.Fprintf(&r.sums, "%x  %s\n", sha256.Sum256(data), name)
	r.printf("bin/release/" + name)
	return f.Close()
}

// archive writes NAME.tar.gz, with all files below NAME.
func (r *release) archive(name string, files []file) error {
	for i := range files {
		files[i].name = name + "/" + files[i].name
	}
	return r.pack(name+".tar.gz", files)
}

// pack writes an archive of files.
func (r *release) pack(name string, files []file) error {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if err := errors.Join(writeTar(w, r.at, files), w.Close()); err != nil {
		return err
	}
	return r.write(name, buf.Bytes())
}

func (r *release) programs(name string, programs []string, path func(program string) string) error {
	var binaries []file
	for _, program := range programs {
		data, err := os.ReadFile(path(program))
		if err != nil {
			return err
		}
		binaries = append(binaries, file{name: program, mode: 0o755, data: data})
	}
	bill, err := r.bill(name, binaries)
	if err != nil {
		return err
	}
	licence, err := r.read("LICENSE")
	if err != nil {
		return err
	}
	return errors.Join(r.write(name+".cdx.json", bill), r.archive(name, append(licence, binaries...)))
}

// tag matches the version of the images in deploy/.
var tag = regexp.MustCompile(`(?m)^(\s*newTag:) .*$`)

// manifests writes deploy/ with the images of this version, and with the pages that it links to.
func (r *release) manifests() error {
	files, err := r.read("LICENSE", "README.md", "CHANGELOG.md", "deploy", "docs")
	if err != nil {
		return err
	}
	files = slices.DeleteFunc(files, func(f file) bool { return path.Ext(f.name) == ".go" })
	if files, err = r.stamp(files); err != nil {
		return err
	}
	found := false
	for i, f := range files {
		if f.name == "deploy/images/kustomization.yaml" {
			found = tag.Match(f.data)
			files[i].data = tag.ReplaceAll(f.data, []byte(`$1 "`+r.version+`"`)) // 12e5 is a text, not a number
		}
	}
	if !found {
		return errors.New("deploy/images/kustomization.yaml has no newTag")
	}
	return r.archive("hawser_"+r.version+"_manifests", files)
}

// imageArchives writes each image as one file, for tools that load images.
func (r *release) imageArchives() error {
	for _, program := range programs {
		files, err := readTree(r.imageDir(program), ".")
		if err != nil {
			return err
		}
		var buf bytes.Buffer
		if err := writeTar(&buf, r.at, files); err != nil {
			return err
		}
		if err := r.write(program+"_"+r.version+"_image.tar", buf.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) notes() error {
	changelog, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	text, err := notes(string(changelog), r.version)
	if err != nil {
		return err
	}
	return r.write("notes.md", []byte(text))
}

// version matches the tag of a release, without a later commit.
var version = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// notes returns the section of the changelog about a version. A commit without a version gets the unreleased
// section.
func notes(changelog, of string) (string, error) {
	title := "## Unreleased"
	if version.MatchString(of) {
		title = "## " + of
	}
	for section := range strings.SplitSeq(changelog, "\n## ") {
		heading, text, _ := strings.Cut("## "+section, "\n")
		if heading == title || strings.HasPrefix(heading, title+" ") {
			return "# Hawser " + of + "\n\n" + strings.TrimSpace(text) + "\n", nil
		}
	}
	return "", fmt.Errorf("CHANGELOG.md has no section %q: give what is under \"## Unreleased\" that title", title)
}

// read returns files of the repository, including those in directories.
func (b build) read(names ...string) ([]file, error) {
	var all []file
	for _, name := range names {
		files, err := readTree(b.root, name)
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}

// readTree returns the files below root/name, sorted by name; the names are relative to root.
func readTree(root, name string) ([]file, error) {
	var files []file
	err := fs.WalkDir(os.DirFS(root), name, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if e.Type()&fs.ModeSymlink != 0 {
			there, err := follow(root, path)
			files = append(files, there...)
			return err
		}
		data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
		files = append(files, file{name: path, mode: 0o644, data: data})
		return err
	})
	return files, err
}
