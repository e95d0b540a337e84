# A Homebrew formula; the release workflow fills in what stands between @ and puts the result beside the archives.
class Forerun < Formula
  desc "Runs mixture-of-experts language models that are larger than memory"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license any_of: ["Apache-2.0", "MIT"]

  on_macos do
    depends_on arch: :arm64
    url "@REPOSITORY@/releases/download/v@VERSION@/forerun-v@VERSION@-aarch64-apple-darwin.tar.gz"
    sha256 "@SHA256_MACOS_ARM@"
  end

  on_linux do
    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/forerun-v@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256_LINUX_ARM@"
    end
    on_intel do
      url "@REPOSITORY@/releases/download/v@VERSION@/forerun-v@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256_LINUX_X86@"
    end
  end

  def install
    bin.install "forerun"
    lib.install Dir["lib/*"]
    include.install Dir["include/*"]
    generate_completions_from_executable(bin/"forerun", "completions")
    (man1/"forerun.1").write Utils.safe_popen_read(bin/"forerun", "man")
  end

  test do
    assert_match "stream of water", shell_output("#{bin}/forerun run 'What does \"river\" mean?'")
  end
end
