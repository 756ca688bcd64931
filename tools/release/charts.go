package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// chartsDir is the directory of the Helm charts.
const chartsDir = "deploy/charts"

// charts writes each chart as `helm package` does, with the version of the release, and reproducibly.
func (r *release) charts() error {
	dirs, err := fs.Glob(os.DirFS(r.root), chartsDir+"/*/Chart.yaml")
	if err != nil {
		return err
	}
	if len(dirs) == 0 {
		return fmt.Errorf("%s has no chart", chartsDir)
	}
	for _, d := range dirs {
		dir := path.Dir(d)
		files, err := r.read(dir)
		if err != nil {
			return err
		}
		if files, err = r.stamp(files); err != nil {
			return err
		}
		name := path.Base(dir)
		for i := range files {
			files[i].name = name + strings.TrimPrefix(files[i].name, dir)
		}
		if err := r.pack(name+"-"+chartVersion(r.version)+".tgz", files); err != nil {
			return err
		}
	}
	return nil
}

var (
	ofChart   = regexp.MustCompile(`(?m)^version: .*$`)
	ofProgram = regexp.MustCompile(`(?m)^appVersion: .*$`)
)

// stamp puts the version of the release into charts.
func (r *release) stamp(files []file) ([]file, error) {
	for i, f := range files {
		if path.Base(f.name) != "Chart.yaml" {
			continue
		}
		if !ofChart.Match(f.data) || !ofProgram.Match(f.data) {
			return nil, fmt.Errorf("%s has no version or no appVersion", f.name)
		}
		data := ofChart.ReplaceAll(f.data, []byte(`version: "`+chartVersion(r.version)+`"`))
		files[i].data = ofProgram.ReplaceAll(data, []byte(`appVersion: "`+r.version+`"`))
	}
	return files, nil
}

var (
	semantic = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
	foreign  = regexp.MustCompile(`[^0-9A-Za-z-]`)
)

// chartVersion returns a version in Helm's form: a commit without an earlier tag sorts before all releases.
func chartVersion(v string) string {
	if semantic.MatchString(v) {
		return v[1:]
	}
	return "0.0.0-g" + foreign.ReplaceAllString(v, "-")
}

// follow is readTree with symbolic links followed, because the charts link to the kustomize bases.
func follow(root, name string) ([]file, error) {
	target, err := os.Readlink(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	there := path.Join(path.Dir(name), filepath.ToSlash(target))
	files, err := readTree(root, there)
	for i := range files {
		files[i].name = name + strings.TrimPrefix(files[i].name, there)
	}
	return slices.DeleteFunc(files, func(f file) bool { return path.Ext(f.name) == ".go" }), err
}
