#!/bin/sh
# `sluice val` and `sluice predict` with a model that has learnt eight images by heart: val repeats the
# training's own validation on one rank and on two; predict finds what val finds, in images, folders with bad
# files, lists and tiles; what is written is whole and in the file's own pixels.
# usage: test_val.sh [BUILD], or from tests/run.sh; exit status 0 passed, 1 failed.
set -u
bin=${SLUICE_BIN:-${1:-build}/bin}
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-val.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"

fail() {
    echo "test_val: $*"
    for log in "$work"/*.out; do echo "--- $log" && tail -n 12 "$log"; done
    exit 1
}

# run STATUS NAME WORDS..: NAME.out has what it said.
run() {
    want=$1 name=$2
    shift 2
    timeout 300 "$bin/sluice" "$@" >"$name.out" 2>&1 </dev/null
    rc=$?
    [ $rc -eq "$want" ] || fail "$name: exit status $rc, not $want"
}

# alike FILE FILE BY: the same text, numbers in it as near as that. A sum of products has its last bits from the shape of
# the matrices, so from the batch and from how many CPUs there are; counts and names are whole numbers.
alike() {
    awk -v by="$3" '
        function look(s) {
            shape = ""
            n = 0
            while (match(s, /[0-9]+(\.[0-9]+)?(e-?[0-9]+)?/)) {
                shape = shape substr(s, 1, RSTART - 1) "#"
                v[++n] = substr(s, RSTART, RLENGTH) + 0
                s = substr(s, RSTART + RLENGTH)
            }
            shape = shape s
        }
        NR == FNR { text[++lines] = $0; next }
        {
            look(text[FNR])
            was = shape
            for (i = 1; i <= n; i++) w[i] = v[i]
            look($0)
            if (shape != was) exit bad = 1
            for (i = 1; i <= n; i++) if ((v[i] - w[i]) ^ 2 > by ^ 2) exit bad = 1
        }
        END { exit bad || FNR != lines || lines == 0 }' "$1" "$2"
}

has() { grep -q -e "$2" "$1" || fail "$1 has no '$2'"; }

# Dark pictures of 96 x 96 with a square; as BMP, which a shell can write.
repeat() {
    i=0
    while [ $i -lt "$1" ]; do cat "$2" && i=$((i + 1)); done
}
pixels() { head -c $(($1 * 3)) /dev/zero | tr '\0' "$2"; }
# picture FILE X Y SIDE SHADE: y from the bottom, as BMP has its rows.
picture() {
    pixels 96 '\60' >dark
    { pixels "$2" '\60' && pixels "$4" "$5" && pixels $((96 - $2 - $4)) '\60'; } >row
    {
        printf 'BM\066\154\0\0\0\0\0\0\066\0\0\0\050\0\0\0\140\0\0\0\140\0\0\0\001\0\030\0'
        head -c 24 /dev/zero
        repeat "$3" dark && repeat "$4" row && repeat $((96 - $3 - $4)) dark
    } >"$1"
}
mkdir -p data/images/train data/labels/train || exit 1
n=0
for spec in '8 10 40 0' '40 30 48 1' '20 44 36 0' '48 8 40 1' '10 40 52 1' '50 50 32 0' '28 20 56 0' '4 4 44 1'; do
    set -- $spec
    shade='\370' && [ "$4" = 1 ] && shade='\240'
    picture data/images/train/s$n.bmp "$1" "$2" "$3" "$shade"
    awk -v x="$1" -v y="$2" -v s="$3" -v c="$4" 'BEGIN {
        printf "%d %.6f %.6f %.6f %.6f\n", c, (x + s / 2) / 96, 1 - (y + s / 2) / 96, s / 96, s / 96 }' \
        >data/labels/train/s$n.txt
    n=$((n + 1))
done
printf 'train: images/train\nval: images/train\nnames: [bright, mid]\n' >data/data.yaml

run 0 train train data=data/data.yaml model=yolo11n imgsz=96 batch=8 nbs=8 epochs=150 lr0=0.002 optimizer=AdamW \
    warmup_epochs=3 device=cpu workers=1 val=False save=False mosaic=0 scale=0 translate=0 fliplr=0 hsv_h=0 \
    hsv_s=0 hsv_v=0
model=runs/detect/train
trained=$(tail -n 1 $model/results.csv | cut -d, -f6-9)
echo "$trained" | awk -F, '{ exit !($3 > 0.2) }' || fail "the training came to $trained: too little to compare"

# ---- val ----
# measures FILE: P,R,mAP50,mAP50-95 of all classes, as results.csv has them.
measures() {
    sed -n 's/^"all":{.*"precision":\([^,]*\),"recall":\([^,]*\),"map50":\([^,]*\),"map":\([^}]*\)}.*/\1 \2 \3 \4/p' \
        "$1/results.json" | awk '{ for (i = 1; i <= 4; i++) printf("%s%.6g", (i > 1) ? "," : "", sprintf("%.5f", $i)) }'
}
run 0 val1 val model=$model data=data/data.yaml device=cpu workers=1 coco=True
run 0 val2 val model=$model data=data/data.yaml device=cpu,cpu workers=2 batch=3 --coco out=two
echo "$trained" >trained.numbers
for run in runs/detect/val two; do
    measures $run >measured.numbers
    alike measured.numbers trained.numbers 1.5e-5 || fail "$run: $(cat measured.numbers), the training: $trained"
done
# Behind the speed, which is this run's own, everything is the same.
for run in runs/detect/val two; do
    sed -e 1d -e '/^"speed_ms"/d' $run/results.json >"$(echo $run | tr / _).results"
    sort $run/predictions.json | sed 's/,$//' | sort >"$(echo $run | tr / _).found"
done
alike runs_detect_val.results two.results 1e-6 || fail "two ranks have other results: $(diff runs_detect_val.results two.results)"
alike runs_detect_val.found two.found 2e-3 || fail "two ranks have found something else: $(diff runs_detect_val.found two.found)"
cmp -s runs/detect/val/confusion_matrix.csv two/confusion_matrix.csv || fail "two ranks confuse otherwise"
has val1.out 'Class .*Images .*Instances .*mAP50-95'
has val1.out ' all  *8  *8 '
has val1.out ' mid  *4  *4 '
has val1.out 'Speed: .* ms preprocess, .* ms inference, .* ms postprocess'
[ "$(head -c 1 two/predictions.json)" = '[' ] && [ "$(tail -n 1 two/predictions.json)" = ']' ] || fail "no COCO file"
has two/predictions.json '{"image_id":"s1","file_name":"s1.bmp","category_id":2,"bbox":\['
[ -e two/args.yaml ] && [ ! -e two/weights ] && [ ! -e two/results.csv ] || fail "a validation left a training's files"

# ---- predict ----
# In squares val sees what predict sees, so that boxes are the same numbers.
run 0 square val model=$model data=data/data.yaml device=cpu rect=False conf=0.25 coco=True out=square
run 0 one predict model=$model source=data/images/train/s1.bmp device=cpu save_json=True save_txt=True out=one
sed -n 's/.*"file_name":"s1.bmp".*"bbox":\[\(.*\)\],"score":\(.*\)}.*/\1,\2/p' square/predictions.json >want
tr '{' '\n' <one/predictions.json |
    sed -n 's/.*"confidence":\([^,]*\),"xyxy":\[\(.*\)\]}.*/\2,\1/p' |
    awk -F, '{ printf "%.3f,%.3f,%.3f,%.3f,%s\n", $1, $2, $3 - $1, $4 - $2, $5 }' >got
[ -s want ] && awk -F, 'NR == FNR { a[NR] = $0; n = NR; next }
    { split(a[FNR], w, ","); for (i = 1; i <= 5; i++) if ((w[i] - $i) ^ 2 > 4e-6) exit 1 }
    END { if (FNR != n) exit 1 }' want got || fail "predict finds $(cat got), val $(cat want)"
# The best is the square that is there: IoU with the label above 0.7.
head -n 1 one/labels/s1.txt | cat data/labels/train/s1.txt - | awk '
    { c[NR] = $1; x1[NR] = $2 - $4 / 2; x2[NR] = $2 + $4 / 2; y1[NR] = $3 - $5 / 2; y2[NR] = $3 + $5 / 2 }
    function lo(a, b) { return a < b ? a : b }
    function hi(a, b) { return a > b ? a : b }
    END { w = lo(x2[1], x2[2]) - hi(x1[1], x1[2]); h = lo(y2[1], y2[2]) - hi(y1[1], y1[2]); i = w * h
          u = (x2[1] - x1[1]) * (y2[1] - y1[1]) + (x2[2] - x1[2]) * (y2[2] - y1[2]) - i
          exit !(NR == 2 && c[1] == c[2] && w > 0 && h > 0 && i / u > 0.7) }' ||
    fail "s1 is $(cat data/labels/train/s1.txt), found: $(cat one/labels/s1.txt)"
[ "$(od -An -tx1 -N2 one/s1.jpg | tr -d ' ')" = ffd8 ] || fail "one/s1.jpg is no JPEG"

# A folder with files that are none, and one that goes away behind the scan: named, counted, the rest goes on.
mkdir own mixed && cp data/images/train/s[0-3].bmp mixed/ && cp mixed/s0.bmp mixed/gone.bmp
cp "$bin/sluice" own/ && ln -s "$bin/sluice-trainer" "$bin/sluice-scribe" own/
cat >own/sluice-loader <<LOADER
#!/bin/sh
case " \$* " in *' --scan '*) ;; *) rm -f "$work/mixed/gone.bmp" ;; esac
exec "$bin/sluice-loader" "\$@"
LOADER
chmod +x own/sluice-loader
head -c 1000 mixed/s1.bmp >mixed/short.bmp
echo 'no image' >mixed/text.jpg
timeout 300 own/sluice predict model=$model source=mixed device=cpu,cpu workers=2 save_json=True out=folder >folder.out 2>&1 \
    </dev/null || fail "folder: exit status $?"
for name in short.bmp text.jpg gone.bmp; do has folder.out "$name"; done
has folder.out '3 of 7 images could not be used'
[ "$(ls folder/*.jpg | wc -l)" -eq 4 ] || fail "folder: $(ls folder)"
[ "$(grep -c '^{"image":' folder/predictions.json)" -eq 4 ] || fail "folder: $(cat folder/predictions.json)"
has folder/events.jsonl '"event":"bad-sample","path":"[^"]*gone.bmp"'

# A list with two images of one name.
mkdir other && cp mixed/s3.bmp other/s1.bmp
printf './mixed/s1.bmp\n./other/s1.bmp\n' >list.txt
run 0 list predict model=$model source=list.txt device=cpu save=False save_txt=True out=list
[ "$(ls list/labels)" = "$(printf 's1-2.txt\ns1.txt')" ] && [ -z "$(ls list/*.jpg 2>/dev/null)" ] || fail "$(ls list/*)"

# Two pictures side by side, a tile each: what is found in them, the second moved by a tile.
{
    printf 'BM\066\330\0\0\0\0\0\0\066\0\0\0\050\0\0\0\300\0\0\0\140\0\0\0\001\0\030\0' && head -c 24 /dev/zero
    y=0
    while [ $y -lt 96 ]; do
        for half in 1 3; do tail -c +$((55 + 288 * y)) data/images/train/s$half.bmp | head -c 288; done
        y=$((y + 1))
    done
} >wide.bmp
run 0 tiles predict model=$model source=wide.bmp tile=96 overlap=0 device=cpu,cpu workers=2 save_txt=True save_json=True out=tiles
run 0 alone predict model=$model source=data/images/train/s3.bmp device=cpu save_txt=True save=False out=alone
{
    awk '{ print $1, $2 / 2, $3, $4 / 2, $5, $6 }' one/labels/s1.txt
    awk '{ print $1, $2 / 2 + 0.5, $3, $4 / 2, $5, $6 }' alone/labels/s3.txt
} | sort -k6,6 >want
sort -k6,6 tiles/labels/wide.txt | awk 'NR == FNR { a[NR] = $0; n = NR; next }
    { split(a[FNR], w, " "); for (i = 1; i <= 6; i++) if ((w[i] - $i) ^ 2 > 1e-9) exit 1 }
    END { if (FNR != n || n < 2) exit 1 }' want - || fail "tiles: $(cat tiles/labels/wide.txt), apart: $(cat want)"

# A JPEG that EXIF turns: looked at and drawn upright.
{
    head -c 2 tiles/wide.jpg
    printf '\377\341\0\042Exif\0\0MM\0\052\0\0\0\010\0\001\001\022\0\003\0\0\0\001\0\006\0\0\0\0\0\0'
    tail -c +3 tiles/wide.jpg
} >turned.jpg
run 0 turned predict model=$model source=turned.jpg device=cpu out=turned
has turned.out 'turned.jpg: 96x192 '

# ---- a run's folder is a model elsewhere too ----
run 0 exported export model=$model out=model.onnx
[ -s model.onnx ] || fail 'exported: no file'
run 0 again train data=data/data.yaml model=$model imgsz=32 batch=8 epochs=1 close_mosaic=0 device=cpu workers=1 name=again
has again.out 'transferred 499 of 499 tensors from .*weights/best.safetensors'

# Killed while it draws: nothing of what was to be drawn stays behind, and no process.
i=0
while [ $i -lt 40 ]; do cp wide.bmp mixed/w$i.bmp && i=$((i + 1)); done
cat >own/sluice-loader <<LOADER
#!/bin/sh
case " \$* " in *' --draw '*) echo \$\$ >>"$work/drawers" && exec sleep 300 ;; esac
exec "$bin/sluice-loader" "\$@"
LOADER
own/sluice predict model=$model source=mixed device=cpu workers=1 out=cut >cut.out 2>&1 </dev/null &
pid=$! i=0
# There is nothing to make a checkpoint of, while it predicts and while it draws.
until own/sluice checkpoint $pid >asked.out 2>&1; grep -q 'this is a sluice predict, which trains nothing' asked.out; do
    i=$((i + 1))
    [ $i -lt 3000 ] && kill -0 $pid 2>/dev/null || fail "a checkpoint of a prediction: $(cat asked.out)"
    sleep 0.01
done
i=0
while [ ! -s drawers ] && [ $i -lt 1800 ]; do sleep 0.1 && i=$((i + 1)); done
[ -s drawers ] && kill -KILL $pid || fail "cut: no drawing began"
wait $pid 2>/dev/null
left=$(find cut -name '*.spool' -o -name '*.jpg')
[ -z "$left" ] || fail "cut: $left stays"
kill -KILL $(cat drawers) 2>/dev/null

# ---- refusals ----
run 2 fresh predict model=yolo11n source=wide.bmp
run 2 nowhere predict model=$model source=nowhere
run 2 train_key val model=$model data=data/data.yaml tile=96
run 2 no_tile predict model=$model source=wide.bmp overlap=0.5
has no_tile.out 'overlap= .*tile='
run 2 root predict model=$model source=wide.bmp out=/
sed 's/mid/dull/' data/data.yaml >data/other.yaml
run 2 names val model=$model data=data/other.yaml device=cpu
has names.out 'does not know 1 of the data set.s 2 classes (dull)'
run 3 broken predict model=$model source=mixed/text.jpg device=cpu

left=$(find . -name '*.spool' -o -name '*sluice-tmp*')
[ -z "$left" ] || fail "left behind: $left"
echo "val and the training: $trained"
